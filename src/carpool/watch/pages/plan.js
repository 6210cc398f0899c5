// What was planned for each model, and what was measured of it.

import { byId, el, refill } from "./dom.js";
import { count, moment, short } from "./format.js";

const MEANINGS = {
  predicted: "by the plan alone", reported: "as the engine says", verified: "measured by carpool verify",
};
let shown = "";

export function showPlan(told) {
  const text = JSON.stringify(told.models);
  if (text === shown) return;
  shown = text;
  refill(byId("plan"), told.models.length ? told.models.map(model) : el("p", { class: "muted small" }, "No model is served."));
}

function model(each) {
  return el("div", { class: "model" },
    el("h3", {}, each.name),
    el("table", {},
      el("thead", {}, el("tr", {}, ["", "Plan", "Measured"].map((head, number) => el("th", { scope: "col", class: number ? "number" : null }, head || el("span", { class: "offscreen" }, "What"))))),
      el("tbody", {}, each.rows.map(({ name, plan, measured }) => el("tr", {},
        el("th", { scope: "row" }, name),
        el("td", { class: "number" }, figure(plan, "no plan")),
        el("td", { class: "number" }, figure(measured)),
      ))),
    ),
    el("p", { class: "small muted" }, enforced(each)),
  );
}

const figure = (value, unknown = "no data") => (value === null ? unknown : typeof value === "string" ? value : value >= 1e5 || value < 10 ? short(value) : count(value));

function enforced({ max_num_seqs: seats, provenance, verified_at: at }) {
  if (seats === null) return "No engine has said yet what it carries.";
  const when = at ? ` on ${moment(at)}` : "";
  return `In force: ${count(seats)} seats, ${MEANINGS[provenance] ?? provenance}${when}.`;
}
