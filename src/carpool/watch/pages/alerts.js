// What is wrong, since when, and the cheapest thing that helps.

import { api } from "./api.js";
import { byId, el, refill } from "./dom.js";
import { since } from "./format.js";

const KINDS = { critical: "bad", warning: "warn", info: "" };
const HOURS = 4;

export class Alerts {
  #onChange;
  #shown = "";

  constructor(onChange) {
    this.#onChange = onChange;
  }

  show(told) {
    const text = JSON.stringify(told);
    if (text === this.#shown) return;
    this.#shown = text;
    const open = told.alerts.filter((each) => each.state !== "resolved");
    const resolved = told.alerts.filter((each) => each.state === "resolved");
    const failing = told.destinations.filter((each) => each.state === "failing");
    refill(byId("alerts"),
      told.blind_reason ? el("p", { class: "note warn small" }, `Not judged now: ${told.blind_reason}`) : null,
      failing.map((each) => el("p", { class: "note bad small" }, `Alerts cannot be sent to ${each.name}: ${each.last_error ?? "no reason known"}`)),
      open.length ? open.map((each) => this.#alert(each)) : el("p", { class: "muted small" }, told.evaluated_at ? `Nothing, as of ${since(told.evaluated_at)}.` : "Not judged yet."),
      resolved.length ? el("details", {}, el("summary", {}, `Over in the last 24 h: ${resolved.length}`), resolved.map((each) => this.#alert(each))) : null,
    );
  }

  #alert(alert) {
    const isFiring = alert.state === "firing";
    const quiet = alert.acknowledged_until;
    return el("article", { class: "alert" },
      el("span", { class: `badge ${alert.state === "resolved" ? "good" : KINDS[alert.severity] ?? ""}` }, alert.state === "firing" ? alert.severity : alert.state),
      el("span", { class: "small muted" }, ` since ${since(alert.since)}${alert.resolved_at ? `, over ${since(alert.resolved_at)}` : ""}`),
      el("p", {}, alert.summary),
      alert.remedies.length ? el("ol", { "aria-label": "what helps, cheapest first" }, alert.remedies.map((text) => el("li", {}, text))) : null,
      isFiring ? el("p", {}, el("button", {
        type: "button", class: "slim", "data-focus": `ack ${alert.fingerprint}`,
        onclick: () => this.#acknowledge(alert.fingerprint, quiet ? 0 : HOURS),
      }, quiet ? `Quiet until ${since(quiet)}: send again` : `No more messages for ${HOURS} h`)) : null,
    );
  }

  async #acknowledge(fingerprint, hours) {
    try {
      await api("POST", `/admin/v1/alerts/${encodeURIComponent(fingerprint)}/acknowledge`, { hours });
    } finally {
      this.#onChange();
    }
  }
}
