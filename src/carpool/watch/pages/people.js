// Who uses what: tokens of the last 24 hours and their share, what is in flight now, and how long
// prompts have been, hour by hour.

import { byId, el, meter, refill, spark } from "./dom.js";
import { count, percent, short } from "./format.js";
import { colourClass, initials, present } from "./person-colours.js";

const FEW = 15;
const CREEP = 1.5;

export class People {
  #use = null;
  #live = new Map();
  #isAll = false;
  #shown = "";

  showUse(told) {
    this.#use = told;
    this.#draw();
  }

  showNow(now) {
    const live = new Map();
    for (const place of now.places) {
      const known = live.get(place.person_id) ?? { name: place.name, in_flight: 0, waiting: 0 };
      known[place.is_waiting ? "waiting" : "in_flight"] += 1;
      live.set(place.person_id, known);
    }
    this.#live = live;
    present([...live.keys()].concat((this.#use?.people ?? []).slice(0, FEW).map((each) => each.person_id)));
    this.#draw();
  }

  #rows() {
    const used = this.#use?.people ?? [];
    const known = new Set(used.map((each) => each.person_id));
    const others = [...this.#live].filter(([id]) => !known.has(id)).map(([id, { name }]) => ({
      person_id: id, name, requests: null, prompt_tokens: null, output_tokens: null, share: null, prompt_lengths: [],
    }));
    return [...used, ...others].map((each) => ({ ...each, ...(this.#live.get(each.person_id) ?? { in_flight: 0, waiting: 0 }), name: each.name }));
  }

  #draw() {
    const rows = this.#rows();
    const told = JSON.stringify([rows, this.#isAll]);
    if (told === this.#shown) return;
    this.#shown = told;
    byId("people-note").textContent = this.#use === null ? "" : "tokens of the last 24 h, and who is here now";
    const heads = [["Person", ""], ["Share", "number"], ["Prompt", "number roomy"], ["Output", "number roomy"], ["Requests", "number roomy"], ["In flight", "number"], ["Waiting", "number"], ["Prompt length", "roomy"]];
    const some = this.#isAll ? rows : rows.slice(0, FEW);
    refill(byId("people"),
      el("thead", {}, el("tr", {}, heads.map(([text, kind]) => el("th", { scope: "col", class: kind }, text)))),
      el("tbody", {}, rows.length ? some.map(row) : el("tr", {}, el("td", { colSpan: 8, class: "muted" }, this.#use === null ? "No data." : "Nobody has asked anything in this time."))),
    );
    const more = rows.length > FEW ? el("button", {
      type: "button", class: "plain slim", "data-focus": "more",
      onclick: () => { this.#isAll = !this.#isAll; this.#draw(); },
    }, this.#isAll ? `Only the first ${FEW}` : `All ${count(rows.length)} people`) : null;
    refill(byId("people-more"), more);
  }
}

function row(person) {
  return el("tr", {},
    el("td", {}, who(person.person_id, person.name)),
    el("td", { class: "number" }, person.share === null ? "–" : el("span", { class: "share" }, meter(person.share, `share of ${person.name}`), el("b", {}, percent(person.share)))),
    el("td", { class: "number roomy" }, short(person.prompt_tokens)),
    el("td", { class: "number roomy" }, short(person.output_tokens)),
    el("td", { class: "number roomy" }, count(person.requests)),
    el("td", { class: "number" }, String(person.in_flight)),
    el("td", { class: "number" }, String(person.waiting)),
    el("td", { class: "roomy" }, length(person)),
  );
}

// Without a `personId` the chip has no colour: colours are of those who are there now.
export function who(personId, name, under = "") {
  return el("span", { class: "who" },
    el("span", { class: `chip ${personId === null ? "plain" : colourClass(personId)}`, "aria-hidden": "true" }, initials(name)),
    el("span", { class: "name", title: name }, name, under ? el("span", { class: "under", title: under }, under) : null),
  );
}

function length({ prompt_lengths: lengths }) {
  const known = lengths.filter((value) => value !== null);
  if (!known.length) return "–";
  const last = known.at(-1);
  const half = Math.floor(known.length / 2);
  const mean = (values) => values.reduce((all, value) => all + value, 0) / values.length;
  const grown = half > 1 ? mean(known.slice(-half)) / mean(known.slice(0, half)) : 1;
  const trend = grown >= CREEP ? ` (${grown.toFixed(1)}× longer)` : "";
  return el("span", { class: "who" },
    spark(lengths, `tokens per prompt by hour, now ${count(last)}`),
    el("span", { class: `small ${trend ? "warn-ink" : "muted"}` }, `${short(Math.round(last))}${trend}`),
  );
}
