// The time to the first token and the queue on one time axis, and what they say of the day.

import { byId, el, refill, say } from "./dom.js";
import { count, dayOf, duration, minute, moment, UNKNOWN } from "./format.js";
import { worstReading } from "./tiles.js";

const RANGES = { "1h": "1 h", "24h": "24 h", "7d": "7 days", "30d": "30 days" };
const DAY = "24h";
const YOUNG = "1h";
const FEW_POINTS = 30;
const HEIGHT = 150;
const NUM_ROWS = 24;
const TREND_BADGES = { calm: "good", climb: "bad", sawtooth: "warn", unknown: "" };
const TREND_NAMES = { calm: "calm", climb: "steady climb", sawtooth: "sawtooth", unknown: "not known yet" };

export class DayChart {
  #told = null;
  #plots = [];
  #shown = "";
  #isChosen = false;
  #onRange;

  constructor(onRange) {
    this.#onRange = onRange;
    const choices = Object.entries(RANGES).map(([range, name]) => el("button", {
      type: "button", class: "slim", value: range, "aria-pressed": String(range === DAY),
      onclick: () => this.#choose(range),
    }, name));
    byId("ranges").append(...choices);
    document.addEventListener("themechange", () => this.#draw());
    new ResizeObserver(() => this.#fit()).observe(byId("ranges").closest(".card"));
  }

  #choose(range) {
    this.#isChosen = true;
    for (const each of byId("ranges").children) each.setAttribute("aria-pressed", String(each.value === range));
    this.#onRange(range);
  }

  show(told) {
    const known = told.columns["waiting.max"].map((value) => value !== null);
    const number = known.filter(Boolean).length;
    if (!this.#isChosen && number < FEW_POINTS) return this.#choose(YOUNG);  // it has just begun
    this.#told = number ? told : null;
    say(byId("day-note"), noteOf(told, known));
    this.#draw();
    refill(byId("day-table"), number ? tableOf(told) : el("p", { class: "muted small" }, "No data."));
    return undefined;
  }

  read(outlook) {
    const reading = worstReading(outlook);
    const trend = reading?.trend ?? "unknown";
    const shown = JSON.stringify([trend, reading?.sentence]);
    if (shown === this.#shown) return;
    this.#shown = shown;
    refill(byId("reading"), el("span", { class: `badge ${TREND_BADGES[trend] ?? ""}`, title: reading?.sentence ?? "" }, TREND_NAMES[trend] ?? trend));
  }

  #draw() {
    if (this.#told === null || !window.uPlot) {
      for (const { plot } of this.#plots) plot.destroy();
      this.#plots = [];
      byId("chart-ttft").replaceChildren();
      byId("chart-queue").replaceChildren();
      return;
    }
    const { starts, resolution, columns } = this.#told;
    const range = [starts[0], starts.at(-1) + resolution];
    const ink = colours();
    if (this.#plots.length && this.#plots[0].theme === ink.theme) {
      this.#plots[0].plot.setData([starts, columns["ttft.p50"], columns["ttft.p99"]], false);
      this.#plots[1].plot.setData([starts, columns["waiting.max"], columns["in_flight.mean"]], false);
      for (const { plot } of this.#plots) plot.setScale("x", { min: range[0], max: range[1] });
      return;
    }
    for (const { plot } of this.#plots) plot.destroy();
    this.#plots = [
      chart("chart-ttft", "First token", ink, range, (value) => duration(value), [
        { label: "p50", stroke: ink.a, width: 2 },
        { label: "p99", stroke: ink.b, width: 1.5, dash: [5, 3] },
      ], [starts, columns["ttft.p50"], columns["ttft.p99"]]),
      chart("chart-queue", "Requests", ink, range, (value) => (value < 10 ? String(Math.round(10 * value) / 10) : count(value)), [
        { label: "waiting, most", stroke: ink.b, fill: `${ink.b}33`, width: 1.5 },
        { label: "in flight, mean", stroke: ink.c, width: 1.5, dash: [2, 3] },
      ], [starts, columns["waiting.max"], columns["in_flight.mean"]]),
    ].map((plot) => ({ plot, theme: ink.theme }));
  }

  #fit() {
    for (const { plot } of this.#plots) plot.setSize({ width: plot.root.parentNode.clientWidth, height: HEIGHT });
  }
}

function colours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  return {
    theme: document.documentElement.dataset.theme,
    a: of("--plot-a"), b: of("--plot-b"), c: of("--plot-c"), muted: of("--muted"), line: of("--line"),
  };
}

function chart(id, label, ink, range, format, lines, data) {
  const parent = byId(id);
  parent.replaceChildren(el("span", { class: "title" }, label));
  const isLower = id === "chart-queue";
  const axis = { stroke: ink.muted, grid: { stroke: ink.line, width: 1 }, ticks: { stroke: ink.line, width: 1 } };
  const series = lines.map((each) => ({
    ...each, value: (plot, value) => (value === null || value === undefined ? UNKNOWN : format(value)),
    points: { show: true, size: 4, fill: each.stroke, filter: isolated },
  }));
  const options = {
    width: Math.max(200, parent.clientWidth), height: HEIGHT, padding: [6, 14, 0, 0],
    cursor: { sync: { key: "day" }, drag: { x: false, y: false }, points: { size: 7 } },
    scales: { x: { range: () => range }, y: { range: (plot, low, high) => [0, Math.max(high ?? 0, 1e-3) * 1.08] } },
    axes: [{ ...axis, size: isLower ? 30 : 8, values: (plot, splits, index, space, step) => splits.map((at) => (isLower ? whenText(at, step) : "")) }, { ...axis, size: 62, values: (plot, splits) => splits.map(format) }],
    series: [{ value: (plot, value) => (value === null ? UNKNOWN : moment(value)) }, ...series],
  };
  const plot = new window.uPlot(options, data, parent);
  plot.root.setAttribute("role", "img");
  plot.root.setAttribute("aria-label", `${label} over time; the same is below as a table`);
  return plot;
}

const whenText = (at, step) => (step >= 86400 || new Date(1000 * at).getHours() + new Date(1000 * at).getMinutes() === 0 ? dayOf(at) : minute(at));

// A figure between two gaps is a point: a line through it would have no length.
function isolated(plot, number) {
  const values = plot.data[number];
  const found = [];
  for (let each = 0; each < values.length; each += 1) {
    if (isGap(values[each - 1]) && !isGap(values[each]) && isGap(values[each + 1])) found.push(each);
  }
  return found;
}

const isGap = (value) => value === null || value === undefined;

function noteOf({ starts, resolution }, known) {
  const first = known.indexOf(true);
  if (first < 0) return "No data in this time. The first figures are there after about ten seconds, those of longer times after minutes.";
  const notes = [];
  if (first > 1) notes.push(`recorded since ${moment(starts[first])}`);
  const missing = known.slice(first, -2).filter((each) => !each).length * resolution;
  if (missing > 2 * resolution) notes.push(`no data for ${duration(missing)} in between: the gateway did not run, or could not write`);
  return notes.join("; ");
}

function tableOf({ starts, resolution, columns }) {
  const step = Math.ceil(starts.length / NUM_ROWS);
  const rows = [];
  for (let from = 0; from < starts.length; from += step) {
    const worst = (name) => {
      const values = columns[name].slice(from, from + step).filter((value) => value !== null);
      return values.length ? Math.max(...values) : null;
    };
    const waiting = worst("waiting.max");
    rows.push(el("tr", {},
      el("td", {}, moment(starts[from])),
      el("td", { class: "number" }, duration(worst("ttft.p50"))),
      el("td", { class: "number" }, duration(worst("ttft.p99"))),
      el("td", { class: "number" }, waiting === null ? "no data" : count(waiting)),
    ));
  }
  const heads = ["From", "First token p50, worst", "p99, worst", "Most waiting"];
  return el("table", {},
    el("caption", { class: "offscreen" }, `worst of every ${duration(step * resolution)}`),
    el("thead", {}, el("tr", {}, heads.map((text, number) => el("th", { scope: "col", class: number ? "number" : null }, text)))),
    el("tbody", {}, ...rows),
  );
}
