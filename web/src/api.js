// Requests to the API that serves this page. The token is in this module's memory, and nowhere else.

import { EventReader } from "./events.js";
import { REPORT, given } from "./report.js";

const ANSWER_MILLISECONDS = 20_000;
/** Between two signs of life of a feed, which sends one every 10 s. */
const SILENCE_MILLISECONDS = 25_000;

let token = null;
const waiting = new Set();

export function setToken(given) {
  token = given;
  for (const each of [...waiting]) each();
}

export const hasToken = () => token !== null;

/** Calls `listener` when a token was given. */
export function onToken(listener) {
  waiting.add(listener);
  return () => waiting.delete(listener);
}

/** A refusal by the API, or no answer (status 0), as a sentence with its end. */
export class Refused extends Error {
  constructor(status, sentence) {
    super(/[.!?…]$/.test(sentence) ? sentence : `${sentence}.`);
    this.status = status;
  }
}

const OTHER_VERSION = "The service does not know this request: it may be of another version than this page.";
const SENTENCES = {
  401: "The API wants a token.",
  403: "The token does not allow this.",
  404: OTHER_VERSION,
  405: OTHER_VERSION,
  429: "The API has too many requests.",
  500: "The service failed; its log has the reason.",
};

async function request(path, { method = "GET", headers = {}, body, signal } = {}) {
  const given = { Accept: "application/json", ...headers };
  if (token !== null) given.Authorization = `Bearer ${token}`;
  let answer;
  try {
    answer = await fetch(path, { method, headers: given, body, signal, cache: "no-store", credentials: "omit", redirect: "error" });
  } catch (error) {
    if (signal?.aborted && signal.reason?.name !== "TimeoutError") throw error;
    throw new Refused(0, signal?.aborted ? "The API did not answer in time." : "The API cannot be reached.");
  }
  if (answer.ok) return answer;
  let detail = "";
  try {
    detail = String((await answer.json()).detail ?? "");
  } catch {
    // Not a problem document: the status says it.
  }
  // Without a route there is no sentence of the API's own.
  if (["Not Found", "Method Not Allowed"].includes(detail)) detail = "";
  throw new Refused(answer.status, detail || SENTENCES[answer.status] || `The API answered ${answer.status}.`);
}

/** The JSON document at a path; `Refused` otherwise. */
export async function ask(path, { signal, ...options } = {}) {
  if (REPORT) {
    const found = given(path);
    if (found === undefined) throw new Refused(404, "The report does not have this.");
    return found;
  }
  const late = AbortSignal.timeout(ANSWER_MILLISECONDS);
  const answer = await request(path, { ...options, signal: signal ? AbortSignal.any([signal, late]) : late });
  try {
    return await answer.json();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused(0, "The API's answer was cut off.");
  }
}

/** A file at a path, as text. */
export async function file(path) {
  return (await request(path, { headers: { Accept: "text/html" }, signal: AbortSignal.timeout(ANSWER_MILLISECONDS * 3) })).text();
}

/** All pages of a list, 10,000 items at most. */
export async function all(path, options) {
  const items = [];
  let after = "";
  for (let page = 0; page < 10; page += 1) {
    const answer = await ask(`${path}?limit=1000${after && `&after=${encodeURIComponent(after)}`}`, options);
    items.push(...answer.items);
    if (!answer.next) break;
    after = answer.next;
  }
  return items;
}

/** Events of a feed, each with its JSON read, and null for a sign of life. Ends or throws when the connection does. */
export async function* feed(path, { after, signal } = {}) {
  const silent = new AbortController();
  let timer = setTimeout(() => silent.abort(), ANSWER_MILLISECONDS);
  const headers = { Accept: "text/event-stream", ...(after ? { "Last-Event-ID": after } : {}) };
  try {
    const answer = await request(path, { headers, signal: AbortSignal.any([signal, silent.signal]) });
    const pieces = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    const events = new EventReader();
    for (;;) {
      clearTimeout(timer);
      timer = setTimeout(() => silent.abort(), SILENCE_MILLISECONDS);
      const { value, done } = await pieces.read();
      if (done) return;
      yield null;
      for (const each of events.add(value)) {
        try {
          yield { ...each, data: JSON.parse(each.data) };
        } catch {
          // Not a message: the next ones are read.
        }
      }
    }
  } finally {
    clearTimeout(timer);
    silent.abort();
  }
}

/** The events of a time span that are stored. */
export async function stored(path, signal) {
  if (REPORT) return (given(path) ?? []).map((data) => ({ kind: "analysis", data }));
  const found = [];
  for await (const each of feed(path, { signal: AbortSignal.any([signal, AbortSignal.timeout(ANSWER_MILLISECONDS)]) })) {
    if (each?.kind === "end") break;
    if (each) found.push(each);
  }
  return found;
}
