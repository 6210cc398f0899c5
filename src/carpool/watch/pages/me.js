// A person's own page: where they stand, what they may, what they used; by their key alone.

import { repeat } from "./api.js";
import { byId, el, meter, refill, say } from "./dom.js";
import { count, duration, plural, since, time, UNKNOWN } from "./format.js";
import { askKey, enter, forget, own } from "./own-key.js";
import { usageByDay } from "./usage.js";

const NOW_S = 2;
const USAGE_S = 30;
const STALE_S = 10;
const LIMITS = {
  rpm: "Requests a minute", tpm: "Tokens a minute", max_in_flight: "Requests at once",
  max_prompt_tokens: "Tokens of a prompt", max_output_tokens: "Tokens of an answer",
  daily_tokens: "Tokens a day", monthly_tokens: "Tokens a month",
};
let told = null;
let used = null;
let heardAt = 0;
let polls = [];

function open() {
  heardAt = performance.now();
  polls = [repeat(NOW_S, () => hear("/v1/me", (answer) => { told = answer; heardAt = performance.now(); drawNow(); })),
    repeat(USAGE_S, () => hear("/v1/me/usage", (answer) => { used = answer.is_known ? answer : { ...used, is_known: false }; drawUsed(); })),
    repeat(NOW_S, async () => drawFreshness())];
}

async function hear(path, take) {
  try {
    take(await own(path));
  } catch (error) {
    if (error.status !== 401) return;
    for (const poll of polls) poll.stop();
    forget();
    askKey(open, "Your key does not work any more.");
  }
}

function drawNow() {
  say(byId("name"), told.person.name);
  refill(byId("now"), el("div", { class: "rows" }, el("p", { class: "standing" }, standing()), waits(), models()));
  drawLimits();
}

function standing() {
  if (told.waiting.length) {
    const first = Math.min(...told.waiting.map((each) => each.position));
    return first === 0 ? "You are next" : `${plural(first, "request")} before yours`;
  }
  return told.in_flight.length ? `${plural(told.in_flight.length, "request")} being answered` : "Nothing under way";
}

function waits() {
  if (!told.waiting.length) return null;
  return el("ul", { class: "small" }, told.waiting.slice(0, 20).map((each) =>
    el("li", {}, `${each.model}: ${each.position} before it, waiting ${duration(each.for_s)}`)));
}

const models = () => el("dl", { class: "facts" }, told.models.map((model) => [
  el("dt", {}, model.name),
  el("dd", {}, model.is_ready ? `${count(model.in_flight)} in flight, ${count(model.waiting)} waiting` : "not ready"),
]).flat());

function drawUsed() {
  const known = used?.today;
  refill(byId("used"), el("div", { class: "rows" },
    el("dl", { class: "facts" },
      el("dt", {}, "Today, all your keys"), el("dd", {}, known ? `${count(used.today.person)} tokens` : "no data"),
      el("dt", {}, "Today, this key"), el("dd", {}, known ? `${count(used.today.key)} tokens` : "no data"),
      el("dt", {}, "This month, all your keys"), el("dd", {}, known ? `${count(used.month.person)} tokens` : "no data"),
      el("dt", {}, "This month, this key"), el("dd", {}, known ? `${count(used.month.key)} tokens` : "no data"),
    ),
    used && !used.is_known ? el("p", { class: "note warn small" }, known ? `The database is away; as of ${time(used.as_of)}.` : "The database is away: what was used is not known now.") : null,
  ));
  if (used?.days) refill(byId("days"), usageByDay(used.days));
  if (told) drawLimits();
}

function drawLimits() {
  const rows = Object.entries(LIMITS).flatMap(([name, label]) => [
    ["this key", told.key[name], "key"],
    ["you", told.person[name], "person"],
    ...told.models.map((model) => [`you, with ${model.name}`, model[name], null]),
  ].filter(([, limit]) => limit !== null && limit !== undefined).map(([whose, limit, level]) => ({ name, label, whose, limit, level })));
  const { key } = told;
  const notes = [
    `Key ${key.key_id} (${key.label})`, key.lane === "batch" ? "batch lane: goes when nobody else waits" : null,
    told.person.weight === 1 ? null : `your share counts ${told.person.weight}×`,
    key.is_private ? "never leaves for a fallback" : null, key.expires_at ? `works until ${since(key.expires_at)}` : null,
  ].filter(Boolean).join(" · ");
  refill(byId("limits"), el("div", { class: "rows" },
    el("p", { class: "small muted" }, notes),
    rows.length ? el("div", { class: "scroll", tabIndex: 0, role: "region", "aria-labelledby": "limits-title" }, el("table", {},
      el("thead", {}, el("tr", {}, ["Limit", "For", "May", "Used"].map((head, number) => el("th", { scope: "col", class: number > 1 ? "number" : null }, head)))),
      el("tbody", {}, rows.map(limitRow)),
    )) : el("p", {}, "None: a fair share of the machine, like everybody."),
  ));
}

function limitRow({ name, label, whose, limit, level }) {
  const period = { daily_tokens: used?.today, monthly_tokens: used?.month }[name];
  const number = period && level ? period[level] : null;
  return el("tr", {},
    el("td", {}, label), el("td", {}, whose), el("td", { class: "number" }, count(limit)),
    el("td", { class: "number" }, number === null ? UNKNOWN : [count(number), meter(number / limit, `${label} used`)]),
  );
}

function drawFreshness() {
  if (told === null) return;
  const isStale = (performance.now() - heardAt) / 1000 > STALE_S;
  say(byId("live"), isStale ? `as of ${time(told.as_of)}` : `live · ${time(told.as_of)}`);
  if (isStale === (byId("notices").childElementCount > 0)) return;
  refill(byId("notices"), isStale ? el("p", { class: "note bad" }, `Not up to date: the gateway has not answered since ${time(told.as_of)}.`) : null);
}

enter(open);
