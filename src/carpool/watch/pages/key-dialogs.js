// Questions about a key, one at a time, in the page's dialog.

import { byId, el } from "./dom.js";

const FIELDS = {
  rpm: "Requests a minute", tpm: "Tokens a minute", max_in_flight: "Requests at once",
  max_prompt_tokens: "Tokens of a prompt", max_output_tokens: "Tokens of an answer",
  daily_tokens: "Tokens a day", monthly_tokens: "Tokens a month",
};

export function askRevoke(key, revoke) {
  return ask({
    title: "Revoke this key?",
    body: [
      el("p", {}, `The key “${key.label}” (${key.key_id}) of ${key.person} stops working for good. What it has waiting is sent away, and what it has running ends with an error.`),
    ],
    action: "Revoke", kind: "danger", send: revoke,
  });
}

export function askLimits(key, change) {
  return ask({
    title: `Limits of ${key.person}, ${key.label}`,
    body: [el("p", { class: "muted small" }, "For this key alone. Empty is no limit."), el("div", { class: "two" }, limitFields(key))],
    action: "Save", kind: "primary", send: (form) => change(limitsOf(form)),
  });
}

export function askNewKey(people, add) {
  return ask({
    title: "Add a key",
    body: [
      field("person", "Person", { list: "people-list", required: true, autocomplete: "off", maxLength: 100 }, "Somebody new is added with it."),
      el("datalist", { id: "people-list" }, people.slice(0, 500).map((person) => el("option", { value: person.name }))),
      field("label", "Label", { autocomplete: "off", placeholder: "laptop, script, …", maxLength: 100 }),
      el("details", { class: "field" }, el("summary", {}, "Limits"), el("div", { class: "two" }, limitFields({}))),
    ],
    action: "Add", kind: "primary",
    send: (form) => {
      const label = form.elements.label.value.trim();
      const limits = Object.entries(limitsOf(form)).filter(([, value]) => value !== null);
      return add({ person: form.elements.person.value.trim(), ...(label ? { label } : {}), ...Object.fromEntries(limits) });
    },
  });
}

// Closed by its button alone: the key is nowhere else.
export async function showNewKey(made) {
  const dialog = byId("dialog");
  const told = el("span", { class: "small", role: "status" });
  const secret = el("code", { class: "secret mono", id: "new-key", tabIndex: 0 }, made.key);
  const copy = el("button", { type: "button", class: "primary" }, "Copy");
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(made.key);
      told.textContent = "Copied.";
    } catch {
      getSelection().selectAllChildren(secret);
      told.textContent = "Selected; copy it with the keyboard.";
    }
  });
  const done = el("button", { type: "button", onclick: () => dialog.close() }, "I have kept it");
  dialog.replaceChildren(
    el("h2", { id: "dialog-title" }, `The key of ${made.person}`),
    el("p", { class: "small" }, "It is shown this once. Carpool keeps only a hash of it."),
    secret, el("div", { class: "buttons" }, copy, done, told),
  );
  dialog.showModal();
  const keepOpen = (event) => event.preventDefault();
  dialog.addEventListener("cancel", keepOpen);
  await closed(dialog);
  dialog.removeEventListener("cancel", keepOpen);
  dialog.replaceChildren();
}

// The result of `send`, or null where it was left.
async function ask({ title, body, action, kind, send }) {
  const dialog = byId("dialog");
  const error = el("p", { class: "error small", role: "alert" });
  const submit = el("button", { type: "submit", class: kind }, action);
  const cancel = el("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const form = el("form", {}, el("h2", { id: "dialog-title" }, title), ...body, error, el("div", { class: "buttons" }, submit, cancel));
  let result = null;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    error.textContent = "";
    try {
      result = await send(form);
      dialog.close();
    } catch (problem) {
      error.textContent = problem.message;
      submit.disabled = false;
      const at = problem.param && form.elements[problem.param];
      (at || submit).focus();
    }
  });
  dialog.replaceChildren(form);
  dialog.showModal();
  if (kind === "danger") cancel.focus();
  await closed(dialog);
  dialog.replaceChildren();
  return result;
}

const closed = (dialog) => new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));

function field(name, label, properties, hint = "") {
  return el("div", { class: "field" },
    el("label", { for: `field-${name}` }, label),
    el("input", { id: `field-${name}`, name, "aria-describedby": hint ? `hint-${name}` : null, ...properties }),
    hint ? el("small", { id: `hint-${name}`, class: "muted" }, hint) : null,
  );
}

const limitFields = (key) => Object.entries(FIELDS).map(([name, label]) =>
  field(name, label, { inputMode: "numeric", pattern: "[0-9]*", autocomplete: "off", value: key[name] ?? "" }));

function limitsOf(form) {
  return Object.fromEntries(Object.keys(FIELDS).map((name) => {
    const text = form.elements[name].value.trim();
    return [name, text === "" ? null : Number(text)];
  }));
}
