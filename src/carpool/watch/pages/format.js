// Figures as people read them. What is not known is an en dash, never a nought.

export const UNKNOWN = "–";
const grouped = new Intl.NumberFormat("en");
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const shortClock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const dayAndClock = new Intl.DateTimeFormat(undefined, {
  day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23",
});

const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });

const isKnown = (value) => typeof value === "number" && Number.isFinite(value);

export const count = (value) => (isKnown(value) ? grouped.format(Math.round(value)) : UNKNOWN);

export function short(value) {
  if (!isKnown(value)) return UNKNOWN;
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return `${trimmed(value / size)}${unit}`;
  }
  return Number.isInteger(value) ? String(value) : trimmed(value);
}

const trimmed = (value) => (Math.abs(value) >= 100 ? value.toFixed(0) : value.toFixed(1).replace(/\.0$/, ""));

export function duration(seconds) {
  if (!isKnown(seconds)) return UNKNOWN;
  if (seconds < 1) return `${Math.round(1000 * seconds)} ms`;
  if (seconds < 10) return `${trimmed(seconds)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

export const percent = (share) => (isKnown(share) ? `${Math.round(100 * share)} %` : UNKNOWN);
export const time = (unixSeconds) => (isKnown(unixSeconds) ? clock.format(1000 * unixSeconds) : UNKNOWN);
export const minute = (unixSeconds) => (isKnown(unixSeconds) ? shortClock.format(1000 * unixSeconds) : UNKNOWN);
export const moment = (unixSeconds) => (isKnown(unixSeconds) ? dayAndClock.format(1000 * unixSeconds) : UNKNOWN);
export const dayOf = (unixSeconds) => day.format(1000 * unixSeconds);
export const bytes = (value) => (isKnown(value) ? `${(value / 2 ** 30).toFixed(1)} GiB` : UNKNOWN);
export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

export function since(iso) {
  const at = Date.parse(iso ?? "");
  return Number.isNaN(at) ? UNKNOWN : dayAndClock.format(at);
}
