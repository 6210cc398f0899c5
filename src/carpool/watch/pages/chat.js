// A small chat: pick a model, ask, watch the answer come, stop it. It tells where one stands in
// the queue, how long the first token took, and how fast the others came.

import { errorOf, repeat } from "./api.js";
import { byId, el, say } from "./dom.js";
import { duration, plural } from "./format.js";
import { askKey, authorization, enter, forget, own } from "./own-key.js";
import { events } from "./sse.js";

const PLACE_S = 1.5;
const HEARTBEAT_S = 1;
const log = byId("log");
let messages = [];
let running = null;

// ------------------------------------------------------------------------------ asking

async function ask(text) {
  const model = byId("model").value;
  messages.push({ role: "user", content: text });
  turn("user").show(text);
  const answer = turn("assistant");
  running = new AbortController();
  working(true);
  const watch = new Stopwatch(answer);
  try {
    await stream(model, answer, watch, running.signal);
    watch.end();
  } catch (error) {
    watch.end(error.name === "AbortError" ? "stopped" : error.message ?? "the connection was lost");
    if (error.status === 401) {
      forget();
      askKey(open, "Your key does not work any more.");
    }
  } finally {
    running = null;
    working(false);
  }
  if (answer.text) messages.push({ role: "assistant", content: answer.text });
  else messages.pop();
}

async function stream(model, answer, watch, signal) {
  const reply = await fetch("/v1/chat/completions", {
    method: "POST", signal, credentials: "omit", cache: "no-store",
    headers: { "content-type": "application/json", "x-carpool-heartbeat": String(HEARTBEAT_S), ...authorization() },
    body: JSON.stringify({ model, messages, stream: true, stream_options: { include_usage: true } }),
  });
  if (!reply.ok) throw errorOf(reply, await reply.json().catch(() => null));
  watch.answered(reply.headers);
  let isWhole = false;
  for await (const data of events(reply.body, () => watch.beat())) {
    if (data === "[DONE]") {
      isWhole = true;
      continue;
    }
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message ?? "the answer was cut");
    const delta = chunk.choices?.[0]?.delta ?? {};
    const piece = (delta.content ?? "") || "";
    if (piece || delta.reasoning_content) watch.token();
    if (piece) answer.add(piece);
    if (chunk.usage?.completion_tokens) watch.numTokens = chunk.usage.completion_tokens;
    if (chunk.choices?.[0]?.finish_reason === "length") watch.note = "cut at the longest answer allowed";
  }
  if (!isWhole) throw new Error("the answer was cut");
}

// What is measured of one answer, from the click on.
class Stopwatch {
  numTokens = 0;
  note = "";
  #answer;
  #begun = performance.now();
  #first = null;
  #last = null;
  #numPieces = 0;
  #requestId = null;
  #position = null;
  #poll;

  constructor(answer) {
    this.#answer = answer;
    this.#poll = repeat(PLACE_S, () => this.#findPlace());
    say(byId("status"), "Sent.");
  }

  answered(headers) {
    this.#requestId = headers.get("x-request-id");
    const position = headers.get("x-carpool-queue-position");
    if (position !== null) this.#position = Number(position);
  }

  beat() {
    if (this.#first === null && this.#position === null) this.#say("Waiting");
  }

  token() {
    this.#last = performance.now();
    this.#numPieces += 1;
    if (this.#first === null) {
      this.#first = this.#last;
      this.#poll.stop();
    }
    this.#say(this.#figures());
  }

  end(trouble = "") {
    this.#poll.stop();
    const parts = [this.#first === null ? "" : this.#figures(), this.note, trouble].filter(Boolean);
    this.#answer.end(parts.join(" · "), Boolean(trouble) && trouble !== "stopped");
    say(byId("status"), trouble === "stopped" ? "Stopped." : trouble ? "" : "Done.");
  }

  #figures() {
    const ttft = (this.#first - this.#begun) / 1000;
    const number = this.numTokens || this.#numPieces;
    const seconds = (this.#last - this.#first) / 1000;
    const parts = [`first token ${duration(ttft)}`];
    if (seconds > 0.05 && number > 2) parts.push(`${((number - 1) / seconds).toFixed(1)} tok/s`);
    parts.push(plural(number, "token"));
    if (this.#position > 0) parts.push(`${plural(this.#position, "request")} went before`);
    return parts.join(" · ");
  }

  // Where this request stands, or the last of mine while its id is not known yet.
  async #findPlace() {
    if (this.#first !== null) return;
    const waited = (performance.now() - this.#begun) / 1000;
    if (waited < PLACE_S / 2) return;
    const told = await own("/v1/me").catch(() => null);
    if (told === null || this.#first !== null) return;
    const mine = told.waiting.find((each) => each.request_id === this.#requestId) ?? told.waiting.at(-1);
    if (mine === undefined) this.#say(`The model is reading · ${duration(waited)}`);
    else {
      this.#position = Math.max(this.#position ?? 0, mine.position);
      const place = mine.position === 0 ? "You are next" : `${plural(mine.position, "request")} before yours`;
      this.#say(`In the queue: ${place} · ${duration(waited)}`);
    }
  }

  #say(text) {
    say(byId("status"), text);
  }
}

// ------------------------------------------------------------------------------ what is shown

function turn(role) {
  byId("hello").hidden = true;
  const text = el("div", { class: "text" });
  const figures = el("p", { class: "figures small muted" });
  const node = el("article", { class: `turn ${role}`, "aria-label": role === "user" ? "You" : "Answer" }, text, figures);
  if (role === "user") figures.remove();
  else node.setAttribute("aria-busy", "true");
  const isAtEnd = () => log.scrollHeight - log.scrollTop - log.clientHeight < 80;
  log.append(node);
  log.scrollTop = log.scrollHeight;
  return {
    text: "",
    show(whole) { this.text = whole; text.replaceChildren(...blocks(whole)); },
    add(piece) {
      const follows = isAtEnd();
      this.text += piece;
      if (this.text.includes("```")) text.replaceChildren(...blocks(this.text));
      else text.append(piece);
      if (follows) log.scrollTop = log.scrollHeight;
    },
    end(line, isTrouble) {
      node.removeAttribute("aria-busy");
      figures.textContent = line;
      figures.classList.toggle("error", isTrouble);
      log.scrollTop = log.scrollHeight;
    },
  };
}

// Text, and what stands between fences as code.
function blocks(text) {
  return text.split(/```[^\n`]*\n?/).map((part, number) => (number % 2 ? el("pre", { tabIndex: 0 }, el("code", {}, part)) : part));
}

function working(isIt) {
  byId("send").hidden = isIt;
  byId("stop").hidden = !isIt;
  byId("new").disabled = isIt;
  if (!isIt) byId("text").focus();
}

function open(models) {
  byId("model").replaceChildren(...models.map((name) => el("option", { value: name }, name)));
  byId("choice").hidden = false;
  byId("new").hidden = false;
  if (!models.length) say(byId("status"), "There is no model that this key may use.");
  byId("text").focus();
}

byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = byId("text").value.trim();
  if (!text || running || !byId("model").value) return;
  byId("text").value = "";
  ask(text);
});
byId("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    byId("ask").requestSubmit();
  }
});
byId("stop").addEventListener("click", () => running?.abort());
byId("new").addEventListener("click", () => {
  messages = [];
  for (const each of log.querySelectorAll(".turn")) each.remove();
  byId("hello").hidden = false;
  say(byId("status"), "");
  byId("text").focus();
});

enter(open);
