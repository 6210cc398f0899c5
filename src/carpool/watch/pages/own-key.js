// A person's key: in memory and, if they wish, in this tab until it is closed. It travels in a
// header alone.

import { api } from "./api.js";
import { byId, el } from "./dom.js";

const NAME = "carpool-key";
let key = kept();

function kept() {
  try { return sessionStorage.getItem(NAME) ?? ""; } catch { return ""; }
}

function keep(isWanted) {
  try {
    if (isWanted) sessionStorage.setItem(NAME, key);
    else sessionStorage.removeItem(NAME);
  } catch { /* a browser that keeps nothing: it is asked for again */ }
}

export const authorization = () => (key ? { authorization: `Bearer ${key}` } : {});
export const own = (path) => api("GET", path, undefined, authorization());

export function forget() {
  key = "";
  keep(false);
}

// Opens the page with the key that is known, or none where none is wanted; else asks for it.
export async function enter(open) {
  byId("forget").addEventListener("click", () => { forget(); location.reload(); });
  try {
    opened(open, await own("/v1/models"));
  } catch (error) {
    const wasKept = key !== "";
    if (error.status === 401) forget();
    askKey(open, error.status === 401 ? (wasKept ? "The key that was kept does not work any more." : "") : error.message);
  }
}

export function askKey(open, message) {
  const field = el("input", { id: "key", class: "mono", type: "password", autocomplete: "off", placeholder: "cp-…", required: true, spellcheck: false });
  const keepIt = el("input", { type: "checkbox", id: "keep" });
  const error = el("p", { class: "error small", role: "alert" }, message);
  const form = el("form", {},
    el("div", { class: "field" }, el("label", { for: "key" }, "Your key"), field),
    el("label", { class: "check field" }, keepIt, "Keep it until this tab is closed"),
    error,
    el("div", { class: "buttons" }, el("button", { class: "primary", type: "submit" }, "Continue")),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    error.textContent = "";
    key = field.value.trim();
    try {
      const models = await own("/v1/models");
      keep(keepIt.checked);
      opened(open, models);
    } catch (problem) {
      key = "";
      error.textContent = problem.status === 401 ? "This key does not work. Whoever runs the gateway can give you another." : problem.message;
      field.select();
    }
  });
  byId("login").replaceChildren(
    el("h1", { id: "login-title" }, "Hello"),
    el("p", { class: "muted" }, "You need the key that whoever runs this gateway gave you. It goes nowhere but to this gateway."),
    form,
  );
  byId("page").hidden = true;
  byId("login").hidden = false;
  field.focus();
}

function opened(open, models) {
  byId("login").hidden = true;
  byId("login").replaceChildren();
  byId("page").hidden = false;
  byId("forget").hidden = key === "";
  open(models.data.map((model) => model.id));
}
