// The four questions of a glance, each with its answer.

import { byId, el, meter, refill } from "./dom.js";
import { count, duration, minute, percent, plural, short } from "./format.js";
import { colourClass, initials } from "./person-colours.js";

const MOST_CHIPS = 14;
const SLOW_S = 15;

export function showTiles(now, outlook, alerts) {
  const load = total(now.models);
  tile("well", wellness(now, outlook, alerts));
  tile("who", whoIsOn(now));
  tile("full", fullness(load, now));
  tile("coming", coming(now, outlook, load));
}

function tile(name, parts) {
  const card = byId(`tile-${name}`);
  const before = [...card.children].slice(1);
  if (before.length === parts.length && parts.every((part, number) => part.isEqualNode(before[number]))) return;
  refill(card, card.querySelector("h2"), ...parts);
}

const big = (text, kind) => el("p", { class: "big" }, el("span", { class: `dot ${kind}`, "aria-hidden": "true" }), text);
const line = (text, more = "") => el("p", { class: `small muted ${more}` }, text);

export function total(models) {
  const sum = (name) => models.reduce((all, model) => all + (model[name] ?? 0), 0);
  const known = models.filter((model) => model.max_num_seqs !== null);
  return {
    in_flight: sum("in_flight"), waiting: sum("waiting"), tokens: sum("in_flight_tokens"),
    seats: known.length ? sum("max_num_seqs") : null, kv: known.length ? sum("kv_tokens") : null,
  };
}

function wellness(now, outlook, alerts) {
  const down = now.models.filter((model) => model.state !== "ready");
  const firing = (alerts?.alerts ?? []).filter((each) => each.state === "firing" && each.severity !== "info");
  const recent = outlook?.recent ?? null;
  const figures = recent === null || recent.ttft_p50 === null
    ? line("First token: no data in the last 5 min")
    : line(`First token ${duration(recent.ttft_p50)}, p99 ${duration(recent.ttft_p99)} at ${minute(recent.at)}`);
  const speed = recent?.tokens_per_second ?? null;
  const rate = speed === null ? null : line(`${short(speed)} tokens/s out`);
  if (down.length === now.models.length) {
    return [big(now.models.length ? "No: no engine answers" : "Nothing is served", "bad"), ...states(down), figures];
  }
  const worst = firing.find((each) => each.severity === "critical") ?? firing[0];
  if (down.length) return [big("In part", "bad"), ...states(down), figures];
  if (worst?.severity === "critical") return [big("No", "bad"), line(worst.summary), figures];
  const longest = longestWait(now);
  if (!worst && longest >= SLOW_S) return [big("Slow", "warn"), line(`requests wait up to ${duration(longest)}`), figures];
  if (worst) return [big("Mostly", "warn"), line(worst.summary), figures];
  return [big("Yes", "good"), figures, rate ?? line(plural(now.models.length, "model") + " ready")];
}

const longestWait = (now) => Math.max(0, ...now.places.filter((place) => place.is_waiting).map((place) => place.for_s));
const states = (models) => models.slice(0, 3).map((model) => line(`${model.name} is ${model.state}`));

function whoIsOn(now) {
  const on = new Map();
  for (const place of now.places) {
    if (!place.is_waiting) on.set(place.person_id, place.name);
  }
  const waiting = new Set(now.places.filter((each) => each.is_waiting).map((each) => each.person_id));
  const onlyWaiting = [...waiting].filter((id) => !on.has(id)).length;
  const chips = [...on].slice(0, MOST_CHIPS).map(([id, name]) =>
    el("span", { class: `chip ${colourClass(id)}`, title: name }, initials(name)));
  if (on.size > MOST_CHIPS) chips.push(el("span", { class: "small muted" }, `and ${on.size - MOST_CHIPS}`));
  const names = [...on.values()].slice(0, 3).join(", ");
  return [
    big(on.size === 0 ? "Nobody" : plural(on.size, "person", "people"), on.size ? "good" : "none"),
    chips.length ? el("div", { class: "chips", "aria-label": names, role: "group" }, ...chips) : line("no request is at an engine"),
    onlyWaiting ? line(`${plural(onlyWaiting, "person", "people")} only waiting`) : null,
  ].filter(Boolean);
}

function fullness(load, now) {
  if (load.seats === null) return [big("Not known", "none"), line("no engine has said what it carries")];
  const seats = load.in_flight / load.seats;
  const kv = load.kv ? load.tokens / load.kv : null;
  const share = Math.max(seats, kv ?? 0);
  const unlimited = now.models.every((model) => model.kv_tokens > 1e15);
  return [
    big(percent(share), share >= 0.85 ? "warn" : "good"),
    meter(seats, "seats taken"),
    line(`${count(load.in_flight)} of ${count(load.seats)} seats`),
    unlimited || kv === null ? null : meter(kv, "KV cache expected to be taken"),
    unlimited || kv === null ? null : line(`KV ${short(load.tokens)} of ${short(load.kv)} tokens`),
  ].filter(Boolean);
}

const TRENDS = {
  calm: ["Calm", "good"], climb: ["Steady climb", "bad"], sawtooth: ["Sawtooth", "warn"], unknown: ["Not known yet", "none"],
};
const ORDER = ["climb", "sawtooth", "calm", "unknown"];

export function worstReading(outlook) {
  const readings = outlook?.readings ?? [];
  return [...readings].sort((one, other) => ORDER.indexOf(one.trend) - ORDER.indexOf(other.trend))[0] ?? null;
}

function coming(now, outlook, load) {
  const reading = worstReading(outlook);
  const [title, kind] = TRENDS[reading?.trend ?? "unknown"] ?? TRENDS.unknown;
  const longest = longestWait(now);
  return [
    big(title, kind),
    line(reading?.sentence ?? "too little was recorded to read the day"),
    load.waiting
      ? line(`${plural(load.waiting, "request")} waiting, the longest for ${duration(longest)}`)
      : line("nobody waits"),
  ];
}
