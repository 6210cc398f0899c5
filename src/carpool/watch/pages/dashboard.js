// The dashboard: logs in, asks the gateway now and then, and hands what it says to each part.

import { ApiError, api, repeat } from "./api.js";
import { byId, el, refill, say } from "./dom.js";
import { duration, time } from "./format.js";
import { Alerts } from "./alerts.js";
import { DayChart } from "./day-chart.js";
import { Keys } from "./keys.js";
import { People } from "./people.js";
import { showPlan } from "./plan.js";
import { showSeats } from "./seats.js";
import { showTiles } from "./tiles.js";
import { showUsage } from "./usage.js";

const NOW_S = 2;
const SLOW_S = 15;
const SLOWER_S = 60;
const SLOWER = new Set(["plan", "keys", "usage"]);
const STALE_S = 3 * NOW_S + 4;
const MOST_FAILED = 2;
const JUMP_S = 60;

const state = { now: null, outlook: null, series: null, alerts: null };
const troubles = new Map();
const clock = { offset: null, jump: null };
let heardAt = 0;
let numFailed = 0;
let polls = [];

const day = new DayChart((range) => { state.range = range; slowPoll("series")?.now(); });
const people = new People();
const keys = new Keys(() => slowPoll("keys")?.now());
const alerts = new Alerts(() => slowPoll("alerts")?.now());

// ---------------------------------------------------------------- what is asked, and how often

const PARTS = {
  series: () => api("GET", `/admin/v1/series?range=${state.range ?? "24h"}`).then((told) => {
    state.series = told;
    day.show(told);
  }),
  outlook: () => api("GET", "/admin/v1/outlook").then((told) => {
    state.outlook = told;
    day.read(told);
    drawTiles();
  }),
  who: () => api("GET", "/admin/v1/who").then((told) => people.showUse(told)),
  plan: () => api("GET", "/admin/v1/plan").then((told) => showPlan(told)),
  alerts: () => api("GET", "/admin/v1/alerts").then((told) => {
    state.alerts = told;
    alerts.show(told);
    drawTiles();
  }),
  keys: () => keys.load(),
  usage: () => api("GET", "/admin/v1/days").then(showUsage),
};
const NAMES = {
  series: "The chart", outlook: "The reading of the day", who: "Who uses what", plan: "The plan",
  alerts: "Alerts", keys: "Keys", usage: "Usage by day",
};

const slowPoll = (name) => polls.find((poll) => poll.name === name);

async function askNow() {
  try {
    const told = await api("GET", "/admin/v1/now");
    heardAt = performance.now();
    numFailed = 0;
    watchClock(told.as_of);
    state.now = told;
    drawNow();
  } catch (error) {
    if (isOver(error)) return;
    numFailed += 1;
  }
  drawFreshness();
}

async function askPart(name) {
  try {
    await PARTS[name]();
    troubles.delete(name);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (isOver(error)) return;
    const since = troubles.get(name)?.since ?? Date.now() / 1000;
    troubles.set(name, { since, error });
  }
  drawFreshness();
}

function isOver(error) {
  if (!(error instanceof ApiError)) throw error;
  if (error.status !== 401) return false;
  showLogin("The session is over; log in again.");
  return true;
}

// A server's clock that was set makes times of before and after disagree: say so.
function watchClock(asOf) {
  const offset = asOf - performance.now() / 1000;
  if (clock.offset !== null && Math.abs(offset - clock.offset) > JUMP_S) {
    clock.jump = { by: offset - clock.offset, at: asOf };
  }
  clock.offset = offset;
}

// ------------------------------------------------------------------------------ what is shown

function drawNow() {
  people.showNow(state.now);
  drawTiles();
  showSeats(state.now);
}

function drawTiles() {
  if (state.now) showTiles(state.now, state.outlook, state.alerts);
}

function drawFreshness() {
  const age = (performance.now() - heardAt) / 1000;
  const isStale = state.now !== null && (age > STALE_S || numFailed >= MOST_FAILED);
  byId("board").classList.toggle("stale", isStale);
  const asOf = state.now === null ? null : state.now.as_of;
  say(byId("live"), asOf === null ? "" : isStale ? `as of ${time(asOf)}` : `live · ${time(asOf)}`);
  const notices = [];
  if (isStale) {
    notices.push(["bad", `Not up to date: the gateway has not answered since ${time(asOf)}. What is shown is from then.`]);
  }
  const away = [...troubles].filter(([, trouble]) => trouble.error.code === "database_away");
  if (away.length) {
    const since = Math.min(...away.map(([, trouble]) => trouble.since));
    notices.push(["warn", `The database is away since about ${time(since)}. Live figures go on; ${away.map(([name]) => NAMES[name]).join(", ")}: as of before.`]);
  }
  for (const [name, { error }] of troubles) {
    if (error.code !== "database_away" && !isStale) notices.push(["warn", `${NAMES[name]} cannot be had now: ${error.message}`]);
  }
  if (clock.jump) {
    const { by, at } = clock.jump;
    notices.push(["warn", `The server's clock was set ${by > 0 ? "forward" : "back"} by ${duration(Math.abs(by))} at ${time(at)}; times before and after do not fit together.`]);
  }
  const shown = JSON.stringify(notices);
  if (byId("notices").dataset.shown !== shown) {
    byId("notices").dataset.shown = shown;
    refill(byId("notices"), notices.map(([kind, text]) => el("p", { class: `note ${kind}` }, text)));
  }
}

// ------------------------------------------------------------------------------ in and out

function start() {
  byId("login").hidden = true;
  byId("board").hidden = false;
  byId("logout").hidden = false;
  heardAt = performance.now();
  const slow = Object.keys(PARTS).map((name) => {
    const poll = repeat(SLOWER.has(name) ? SLOWER_S : SLOW_S, () => askPart(name));
    poll.name = name;
    return poll;
  });
  polls = [repeat(NOW_S, askNow), repeat(NOW_S, async () => drawFreshness()), ...slow];
}

function showLogin(message = "") {
  for (const poll of polls) poll.stop();
  polls = [];
  byId("dialog").close();
  byId("board").hidden = true;
  byId("logout").hidden = true;
  byId("login").hidden = false;
  say(byId("live"), "");
  say(byId("login-error"), message);
  byId("admin-key").focus();
}

byId("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const field = byId("admin-key");
  say(byId("login-error"), "");
  try {
    await api("POST", "/session", { key: field.value });
    field.value = "";
    start();
    byId("main").focus();
  } catch (error) {
    const wait = error.retryAfter ? ` (in ${error.retryAfter} s)` : "";
    const wrong = "That is not the admin key. carpool admin-key makes a new one, which ends the one before.";
    say(byId("login-error"), error.status === 401 ? wrong : `${error.message}${wait}`);
    field.select();
  }
});

byId("logout").addEventListener("click", async () => {
  try {
    await api("DELETE", "/session");
  } finally {
    showLogin("Logged out.");
  }
});

api("GET", "/admin/v1/now").then(start, (error) => showLogin(error.status === 401 ? "" : error.message));
