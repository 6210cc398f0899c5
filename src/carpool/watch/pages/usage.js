// Tokens by day, of the last thirty days, as the ledger has them.

import { bars, byId, el, refill } from "./dom.js";
import { count, short } from "./format.js";

const DAYS = 30;
const DAY_MS = 86400000;
let shown = "";

export function showUsage(told) {
  const text = JSON.stringify([told.days, told.is_counting]);
  if (text === shown) return;
  shown = text;
  refill(byId("usage"), usageByDay(told.days));
  byId("usage-note").textContent = `days are UTC; by the ledger${told.is_counting ? "; days before today are being counted" : ""}`;
}

// `rows` are days that had any request; the others of the time had none.
export function usageByDay(rows) {
  const byDay = new Map(rows.map((row) => [row.group_id, row]));
  const today = Math.floor(Date.now() / DAY_MS);
  const days = Array.from({ length: DAYS }, (_, number) => new Date((today - DAYS + 1 + number) * DAY_MS).toISOString().slice(0, 10));
  const tokens = days.map((day) => sum(byDay.get(day)));
  const all = tokens.reduce((total, value) => total + value, 0);
  const top = Math.max(...tokens);
  const latest = [...rows].reverse().slice(0, 7);
  return el("div", { class: "days" },
    el("div", {},
      bars(tokens, `tokens by day, ${DAYS} days: ${count(all)} in all, at most ${count(top)} a day`),
      el("div", { class: "axis" }, el("span", {}, days[0]), el("span", {}, `most: ${short(top)}`), el("span", {}, days.at(-1))),
    ),
    el("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "usage of the last days" }, el("table", {},
      el("thead", {}, el("tr", {}, ["Day", "Requests", "Failed", "Tokens"].map((head, number) => el("th", { scope: "col", class: number ? "number" : null }, head)))),
      el("tbody", {}, latest.length ? latest.map((row) => el("tr", {},
        el("td", {}, row.group_id),
        el("td", { class: "number" }, count(row.num_requests)),
        el("td", { class: "number" }, count(row.num_failed)),
        el("td", { class: "number" }, short(sum(row))),
      )) : el("tr", {}, el("td", { colSpan: 4, class: "muted" }, "Nothing in the ledger."))),
    )),
  );
}

const sum = (row) => (row ? row.prompt_tokens + row.output_tokens : 0);
