// The machine as a picture: a cell a seat, the KV cache in a hundred blocks, the queue beside it.

import { byId, el, refill } from "./dom.js";
import { count, duration, percent, plural, short } from "./format.js";
import { colourClass, initials } from "./person-colours.js";

const NUM_BLOCKS = 100;
const MOST_CELLS = 1024;
const MOST_QUEUED = 60;
const MOST_NAMES = 12;
const NO_LIMIT = 1e15;
let shown = "";

export function showSeats(now) {
  const rounded = now.places.map((place) => ({ ...place, for_s: Math.round(place.for_s) }));
  const told = JSON.stringify([now.models, rounded]);
  if (told === shown) return;
  shown = told;
  const hidden = now.num_places - now.places.length;
  byId("seats-note").textContent = hidden > 0 ? `${count(hidden)} more requests are not drawn` : "";
  const models = now.models.map((model) => picture(model, now.places.filter((each) => each.model === model.name)));
  refill(byId("seats"), models.length ? models : el("p", { class: "muted" }, "No model is served."));
}

function picture(model, places) {
  const riding = places.filter((place) => !place.is_waiting);
  const waiting = places.filter((place) => place.is_waiting);
  const kind = model.state === "ready" ? "good" : model.state === "down" ? "bad" : "warn";
  return el("div", { class: "model" },
    el("header", {},
      el("h3", {}, model.name),
      el("span", { class: `badge ${kind}` }, model.state),
      el("span", { class: "small muted" }, capacityText(model)),
    ),
    el("div", { class: "bus" }, seats(model, riding), blocks(model, riding), queue(model, waiting)),
  );
}

function capacityText(model) {
  if (model.max_num_seqs === null) return "no engine has said yet what it carries";
  const replicas = model.replicas.length > 1
    ? ` · ${model.replicas.filter((each) => each.state === "ready").length} of ${model.replicas.length} engines ready` : "";
  return `capacity ${model.provenance}${replicas}`;
}

function seats(model, riding) {
  const taken = riding.flatMap((place) => Array(Math.min(place.num_seqs, MOST_CELLS)).fill(place));
  const number = Math.min(MOST_CELLS, Math.max(model.max_num_seqs ?? taken.length, taken.length));
  const size = number > 256 ? "tiny" : number > 48 ? "dense" : "";
  const cells = [];
  for (let each = 0; each < number; each += 1) cells.push(taken[each] ? seat(taken[each]) : el("li", { class: "seat free", "aria-hidden": "true" }));
  const all = model.max_num_seqs === null ? "–" : count(model.max_num_seqs);
  return el("div", {},
    el("h4", {}, `Seats: ${count(model.in_flight)} of ${all} taken`),
    el("ul", { class: `cells ${size}`, "aria-label": `seats of ${model.name}` }, ...cells),
    legend(riding),
  );
}

function seat(place) {
  const text = `${place.name}: about ${count(place.num_tokens)} tokens, for ${duration(place.for_s)}`;
  return el("li", { class: `seat ${colourClass(place.person_id)}`, title: text },
    el("span", { "aria-hidden": "true" }, initials(place.name)),
    el("small", { "aria-hidden": "true" }, place.for_s < 1 ? "new" : duration(place.for_s)),
    el("span", { class: "offscreen" }, text),
  );
}

function legend(riding) {
  const people = new Map();
  for (const place of riding) {
    const known = people.get(place.person_id) ?? { name: place.name, number: 0 };
    people.set(place.person_id, { name: place.name, number: known.number + 1 });
  }
  const sorted = [...people].sort(([, one], [, other]) => other.number - one.number);
  const items = sorted.slice(0, MOST_NAMES).map(([id, { name, number }]) => el("li", {},
    el("span", { class: `chip ${colourClass(id)}`, "aria-hidden": "true" }, initials(name)),
    el("span", { class: "name", title: name }, name), el("span", { class: "muted" }, String(number)),
  ));
  if (sorted.length > MOST_NAMES) items.push(el("li", { class: "muted" }, `and ${sorted.length - MOST_NAMES} more people`));
  return el("ul", { class: "legend", "aria-label": "people on it" }, ...items);
}

function blocks(model, riding) {
  const total = model.kv_tokens;
  const used = riding.reduce((all, place) => all + place.num_tokens, 0);
  if (total === null || total > NO_LIMIT) {
    return el("div", {}, el("h4", {}, "KV cache"), el("p", { class: "small muted" }, "The engine has not said how much it has."));
  }
  const byPerson = new Map();
  for (const place of riding) {
    const known = byPerson.get(place.person_id) ?? { name: place.name, tokens: 0 };
    byPerson.set(place.person_id, { name: place.name, tokens: known.tokens + place.num_tokens });
  }
  const cells = [];
  let edge = 0;
  const sorted = [...byPerson].sort(([, one], [, other]) => other.tokens - one.tokens);
  for (const [id, { tokens }] of sorted) {
    edge += (NUM_BLOCKS * tokens) / total;
    while (cells.length < Math.min(NUM_BLOCKS, Math.round(edge))) cells.push(el("i", { class: `block ${colourClass(id)}` }));
  }
  while (cells.length < NUM_BLOCKS) cells.push(el("i", { class: "block" }));
  const most = sorted.slice(0, 3).map(([, { name, tokens }]) => `${name} ${percent(tokens / total)}`).join(", ");
  return el("div", {},
    el("h4", {}, `KV cache: ${percent(used / total)} of ${short(total)} tokens`),
    el("div", { class: "blocks", role: "img", "aria-label": `KV cache: ${percent(used / total)} taken${most ? `; ${most}` : ""}` }, ...cells),
    el("p", { class: "small muted" }, "As expected of the requests in flight: prompt and answer. A block is 1 %."),
  );
}

function queue(model, waiting) {
  const items = waiting.slice(0, MOST_QUEUED).map((place) => el("li", {},
    el("span", { class: `chip ${colourClass(place.person_id)}`, "aria-hidden": "true" }, initials(place.name)),
    el("span", { class: "name", title: place.name }, place.name),
    el("span", { class: "muted" }, `${short(place.num_tokens)} tok`),
    el("span", {}, duration(place.for_s)),
  ));
  const rest = model.waiting - items.length;
  if (rest > 0) items.push(el("li", { class: "muted" }, `and ${count(rest)} more`));
  return el("div", {},
    el("h4", {}, model.waiting ? `Queue: ${plural(model.waiting, "request")}, in order of arrival` : "Queue"),
    items.length
      ? el("ul", { class: "queue", tabIndex: 0, "aria-label": `queue of ${model.name}`, "data-focus": `queue ${model.name}` }, ...items)
      : el("p", { class: "small muted" }, "Nobody waits."),
  );
}
