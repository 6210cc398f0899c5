// The gateway's JSON. Nothing secret goes into an address.

const TIMEOUT_MS = 10000;

export class ApiError extends Error {
  constructor(message, { status = 0, code = "", param = null, retryAfter = null } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.param = param;
    this.retryAfter = retryAfter;
  }
}

export async function api(method, path, body, headers = {}) {
  const options = {
    method, headers: { ...headers }, credentials: "same-origin", cache: "no-store", redirect: "error",
    signal: AbortSignal.timeout(TIMEOUT_MS),
  };
  if (method !== "GET") {
    options.headers["content-type"] = "application/json";
    options.body = JSON.stringify(body ?? {});
  }
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new ApiError("the gateway does not answer");
  }
  const told = await answer.json().catch(() => null);
  if (!answer.ok) throw errorOf(answer, told);
  return told;
}

export function errorOf(answer, told) {
  const error = told?.error ?? {};
  const message = typeof error.message === "string" ? error.message : `the gateway answered ${answer.status}`;
  return new ApiError(message, {
    status: answer.status, code: error.code ?? "", param: error.param ?? null,
    retryAfter: answer.headers.get("retry-after"),
  });
}

// Calls `work` at once and every so often, one at a time, and not while nobody looks.
export function repeat(seconds, work) {
  let timer = null;
  let isOn = true;
  let isBusy = false;
  async function turn() {
    clearTimeout(timer);
    if (!isOn || isBusy) return;
    isBusy = true;
    try {
      if (!document.hidden) await work();
    } finally {
      isBusy = false;
      if (isOn) timer = setTimeout(turn, 1000 * seconds);
    }
  }
  const onShow = () => { if (!document.hidden) turn(); };
  document.addEventListener("visibilitychange", onShow);
  turn();
  return {
    now: turn,
    stop() {
      isOn = false;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", onShow);
    },
  };
}
