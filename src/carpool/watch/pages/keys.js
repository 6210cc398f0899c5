// The keys: found, added, limited, revoked. What is changed holds at once.

import { api } from "./api.js";
import { askRevoke, askLimits, askNewKey, showNewKey } from "./key-dialogs.js";
import { byId, el, refill, say } from "./dom.js";
import { count, since } from "./format.js";
import { who } from "./people.js";

const FEW = 25;
const ROOMY = new Set(["Id", "State", "Limits", "Since"]);
const LIMITS = { rpm: "req/min", tpm: "tok/min", max_in_flight: "at once", daily_tokens: "tok/day", monthly_tokens: "tok/month" };

export class Keys {
  #keys = null;
  #people = [];
  #number = FEW;
  #shown = "";
  #onChange;

  constructor(onChange) {
    this.#onChange = onChange;
    byId("key-filter").addEventListener("input", () => { this.#number = FEW; this.#draw(); });
    byId("key-all").addEventListener("change", () => this.#draw());
    byId("add-key").addEventListener("click", () => this.#add());
  }

  async load() {
    const [{ keys }, { people }] = await Promise.all([api("GET", "/admin/v1/keys"), api("GET", "/admin/v1/people")]);
    this.#keys = keys;
    this.#people = people;
    this.#draw();
  }

  #matching() {
    const wanted = byId("key-filter").value.trim().toLowerCase();
    const isAll = byId("key-all").checked;
    return (this.#keys ?? []).filter((key) => (isAll || key.state === "works")
      && (!wanted || [key.person, key.label, key.key_id].some((text) => text.toLowerCase().includes(wanted))));
  }

  #draw() {
    const keys = this.#matching().sort((one, other) => one.person.localeCompare(other.person));
    const told = JSON.stringify([keys, this.#number]);
    if (told === this.#shown) return;
    this.#shown = told;
    const all = this.#keys ?? [];
    byId("keys-note").textContent = `${count(all.filter((key) => key.state === "works").length)} work, ${count(all.length)} in all`;
    const heads = ["Whose", "Id", "State", "Limits", "Since", ""];
    refill(byId("keys"),
      el("thead", {}, el("tr", {}, heads.map((text) => (text ? el("th", { scope: "col", class: ROOMY.has(text) ? "roomy" : null }, text) : el("td", {}))))),
      el("tbody", {}, keys.length ? keys.slice(0, this.#number).map((key) => this.#row(key)) : el("tr", {}, el("td", { colSpan: 6, class: "muted" }, all.length ? "No key like that." : "There are no keys yet."))),
    );
    const rest = keys.length - this.#number;
    refill(byId("keys-more"), rest > 0 ? el("button", {
      type: "button", class: "plain slim", "data-focus": "more", onclick: () => { this.#number += 100; this.#draw(); },
    }, `${count(rest)} more`) : null);
  }

  #row(key) {
    const works = key.state === "works";
    const named = `${key.person}, ${key.label}`;
    return el("tr", {},
      el("td", {}, who(null, key.person, key.label === key.person ? "" : key.label)),
      el("td", { class: "mono roomy" }, key.key_id),
      el("td", { class: "roomy" }, el("span", { class: `badge ${works ? "good" : ""}` }, key.state)),
      el("td", { class: "small roomy" }, limitsText(key)),
      el("td", { class: "small muted roomy" }, since(key.created_at)),
      el("td", {}, works ? el("div", { class: "actions" },
        el("button", { type: "button", class: "slim", "aria-label": `Limits of the key of ${named}`, "data-focus": `limit ${key.key_id}`, onclick: () => this.#limit(key) }, "Limits"),
        el("button", { type: "button", class: "slim danger", "aria-label": `Revoke the key of ${named}`, "data-focus": `revoke ${key.key_id}`, onclick: () => this.#revoke(key) }, "Revoke"),
      ) : null),
    );
  }

  async #add() {
    const made = await askNewKey(this.#people, async (fields) => {
      const isThere = this.#people.some((person) => person.name === fields.person || person.person_id === fields.person);
      if (!isThere) {
        await api("POST", "/admin/v1/people", { name: fields.person });
        this.#people = [...this.#people, { name: fields.person, person_id: "" }];
      }
      return api("POST", "/admin/v1/keys", fields);
    });
    if (made) {
      this.#tell(`A key for ${made.person} is added.`);
      await showNewKey(made);
    }
  }

  async #limit(key) {
    const changed = await askLimits(key, (limits) => api("PATCH", `/admin/v1/keys/${key.key_id}`, limits));
    if (changed) this.#tell(`The limits of the key of ${key.person} are changed.`);
  }

  async #revoke(key) {
    const revoked = await askRevoke(key, () => api("POST", `/admin/v1/keys/${key.key_id}/revoke`));
    if (revoked) this.#tell(`The key ${key.key_id} of ${key.person} is revoked.`);
  }

  #tell(text) {
    say(byId("announce"), text);
    this.#onChange();
  }
}

function limitsText(key) {
  const set = Object.entries(LIMITS).filter(([name]) => key[name] !== null).map(([name, unit]) => `${count(key[name])} ${unit}`);
  if (key.models) set.push(`only ${key.models.join(", ")}`);
  if (key.lane === "batch") set.push("batch lane");
  if (key.expires_at) set.push(`until ${since(key.expires_at)}`);
  return set.length ? set.join(" · ") : el("span", { class: "muted" }, "none");
}
