// Numbers, durations, times and vectors in words. Pure: time is an argument.

const SHORT = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const UNKNOWN = "unknown";

/** A number with at most three significant places behind the sign; `unknown` for null. */
export function number(value) {
  if (value == null || !Number.isFinite(value)) return UNKNOWN;
  return Math.abs(value) >= 100 ? WHOLE.format(value) : SHORT.format(value);
}

/** Records per second, shortened from 100,000 on. */
export function rate(value) {
  if (value == null || !Number.isFinite(value)) return UNKNOWN;
  if (value >= 1e6) return `${SHORT.format(value / 1e6)}M/s`;
  return value >= 1e5 ? `${SHORT.format(value / 1e3)}k/s` : `${number(value)}/s`;
}

export function share(value) {
  return value == null || !Number.isFinite(value) ? UNKNOWN : `${WHOLE.format(value * 100)}\u00a0%`;
}

/** A duration in its two largest units, each unbroken: `45 s`, `12 min`, `3 h 20 min`, `2 d 4 h`. */
export function duration(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return UNKNOWN;
  if (seconds < 10) return `${SHORT.format(seconds)}\u00a0s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole}\u00a0s`;
  const units = [
    [86400, "d"],
    [3600, "h"],
    [60, "min"],
    [1, "s"],
  ];
  const first = units.findIndex(([size]) => whole >= size);
  const [size, name] = units[first];
  const [smaller, smallerName] = units[first + 1];
  const large = Math.floor(whole / size);
  const rest = Math.floor((whole - large * size) / smaller);
  const isExact = rest === 0 || (name === "min" && large >= 10);
  return isExact ? `${large}\u00a0${name}` : `${large}\u00a0${name} ${rest}\u00a0${smallerName}`;
}

export function ago(seconds) {
  return seconds == null ? UNKNOWN : `${duration(Math.max(0, seconds))} ago`;
}

/** Seconds since 1970 of an instant of the API; null for none. */
export function seconds(text) {
  const found = text == null ? NaN : Date.parse(text) / 1000;
  return Number.isFinite(found) ? found : null;
}

const pad = (value) => String(value).padStart(2, "0");

/** A time in the viewer's zone. The date stands before it unless it is that of `now`. */
export function clock(at, now = null) {
  if (at == null) return UNKNOWN;
  const time = new Date(at * 1000);
  const text = `${pad(time.getHours())}:${pad(time.getMinutes())}:${pad(time.getSeconds())}`;
  const day = `${time.getFullYear()}-${pad(time.getMonth() + 1)}-${pad(time.getDate())}`;
  return now != null && new Date(now * 1000).toDateString() === time.toDateString() ? text : `${day} ${text}`;
}

export const instant = (at) => new Date(Math.round(at * 1000)).toISOString();

/** A text from outside without the invisible characters that reorder what stands beside them. Letters of every script stay. */
export const plain = (text) => String(text).replace(/[\u200e\u200f\u202a-\u202e\u2066-\u2069\u061c]/g, "");

/** All subtasks of a vector together; null for none. */
export function subtasks(vector) {
  const values = vector == null ? [] : Object.values(vector);
  return values.length === 0 ? null : values.reduce((sum, each) => sum + each, 0);
}

/** What changes between two vectors: `enrich 2 → 5`; empty if nothing does. */
export function changes(before, after) {
  if (!after) return "";
  return Object.entries(after)
    .filter(([name, value]) => before?.[name] !== value)
    .map(([name, value]) => `${plain(name)} ${before?.[name] ?? "?"} → ${value}`)
    .join(", ");
}

/** A vector, all operators of it. */
export function vector(found) {
  const entries = Object.entries(found ?? {});
  return entries.length === 0 ? UNKNOWN : entries.map(([name, value]) => `${plain(name)} ${value}`).join(", ");
}

export function counted(count, one, many = `${one}s`) {
  return `${WHOLE.format(count)} ${count === 1 ? one : many}`;
}

/** A code such as `objective-at-risk` as words. */
export const code = (text) => (text ?? "").replaceAll("-", " ").replaceAll("_", " ");

/** A word for a shell: quoted where it has more than letters, digits and harmless signs. */
export const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`);
