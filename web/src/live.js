// What the page knows of its connection, and hooks that keep data fresh. Ages are measured with the browser's monotonic
// clock, so that a wrong time of day makes nothing look fresh or old.

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { ask, feed, onToken } from "./api.js";
import { later } from "./events.js";
import { REPORT } from "./report.js";

const FIRST_PAUSE = 1_000;
const LONGEST_PAUSE = 15_000;
/** A poll may take this share of the time, so that a large fleet does not keep the service busy. */
const POLL_SHARE = 0.05;

const failures = new Map();
const listeners = new Set();
const changed = () => listeners.forEach((each) => each());

function succeed(name) {
  if (failures.delete(name)) changed();
}

function fail(name, error, retryAt) {
  const since = failures.get(name)?.since ?? performance.now();
  failures.set(name, { since, retryAt, error });
  changed();
}

/** The connection that was lost first: `{since, retryAt, error}` on the monotonic clock; null while all are fine. */
export function useLost() {
  const [, draw] = useState(0);
  useEffect(() => {
    const listener = () => draw((n) => n + 1);
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, []);
  return [...failures.values()].sort((a, b) => a.since - b.since)[0] ?? null;
}

/** Draw again every second, for ages. */
export function useTick(milliseconds = 1000) {
  const [now, draw] = useState(performance.now());
  useEffect(() => {
    if (REPORT) return undefined; // its time stands still
    const timer = setInterval(() => draw(performance.now()), milliseconds);
    return () => clearInterval(timer);
  }, [milliseconds]);
  return now;
}

/** Wait; at once when a token is given or the browser is online again. */
function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const stops = [];
    const end = () => {
      stops.forEach((each) => each());
      resolve();
    };
    const timer = setTimeout(end, milliseconds);
    stops.push(() => clearTimeout(timer), onToken(end));
    for (const [target, name] of [
      [window, "online"],
      [signal, "abort"],
    ]) {
      target.addEventListener(name, end);
      stops.push(() => target.removeEventListener(name, end));
    }
  });
}

/** Wait until this tab is hidden, or shown again. */
function turned(isHidden, signal) {
  return new Promise((resolve) => {
    const look = () => {
      if (document.hidden !== isHidden && !signal.aborted) return;
      document.removeEventListener("visibilitychange", look);
      signal.removeEventListener("abort", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
    signal.addEventListener("abort", look);
    look();
  });
}

/** Repeat `work` until the signal; after a failure with growing pauses. `work` returns the pause after it. */
async function repeat(name, work, signal) {
  let wait = FIRST_PAUSE;
  while (!signal.aborted) {
    let rest;
    try {
      rest = await work(() => {
        wait = FIRST_PAUSE;
        succeed(name);
      });
    } catch (error) {
      if (signal.aborted) break;
      rest = wait * (0.75 + Math.random() / 2);
      wait = Math.min(LONGEST_PAUSE, wait * 2);
      fail(name, error, performance.now() + rest);
    }
    await pause(rest, signal);
  }
  succeed(name);
}

/**
 * What `read` finds, again every `milliseconds` and after `again()`: `{data, error, at, again}`. `at` is when it was read, on the
 * monotonic clock; after a failure the data of before stays, with its time.
 */
export function usePolled(key, read, milliseconds) {
  const [state, set] = useState({ key: null, data: null, error: null, at: null });
  const wake = useRef(null);
  useEffect(() => {
    const ended = new AbortController();
    set({ key, data: null, error: null, at: null });
    repeat(
      key,
      async (alive) => {
        const began = performance.now();
        try {
          const data = await read(ended.signal);
          if (ended.signal.aborted) return 0;
          set({ key, data, error: null, at: performance.now() });
          alive();
          if (REPORT) ended.abort();
        } catch (error) {
          if (!ended.signal.aborted) set((before) => ({ ...before, error }));
          throw error;
        }
        const rest = Math.max(milliseconds, (performance.now() - began) / POLL_SHARE);
        const woken = new AbortController();
        wake.current = () => woken.abort();
        await pause(document.hidden ? rest * 4 : rest, AbortSignal.any([ended.signal, woken.signal]));
        return 0;
      },
      ended.signal,
    );
    return () => ended.abort();
  }, [key, milliseconds]);
  const again = useCallback(() => wake.current?.(), []);
  return { ...(state.key === key ? state : { data: null, error: null, at: null }), again };
}

/**
 * Call `take` with each event of an application's feed from now on; after a loss the feed resumes after the last one, and `regained`
 * is called: before the first event there is nothing to resume after, and a feed keeps its events for a while only. A hidden tab has
 * no feed: a browser has six connections to a host for all its tabs, and a service a limit of feeds.
 */
export function useFeed(path, take, regained) {
  const taking = useRef(take);
  taking.current = take;
  useEffect(() => {
    if (REPORT) return undefined;
    const ended = new AbortController();
    let after = null;
    let isLost = false;
    repeat(
      path,
      async (alive) => {
        await turned(false, ended.signal);
        const closed = new AbortController();
        turned(true, AbortSignal.any([ended.signal, closed.signal])).then(() => closed.abort());
        const wasLost = isLost;
        isLost = true;
        let isOpen = false;
        try {
          for await (const event of feed(path, { after, signal: closed.signal })) {
            alive();
            if (wasLost && !isOpen) regained();
            isOpen = true;
            if (event === null) continue;
            // A feed that goes back is not resumed further back.
            after = later(after, event.id);
            taking.current(event);
          }
        } catch (error) {
          if (document.hidden) return 0;
          throw error;
        } finally {
          closed.abort();
        }
        throw new Error("The feed ended.");
      },
      ended.signal,
    );
    return () => ended.abort();
  }, [path]);
}

/** What is at a path now, once; again when the path changes. Until then, and where it is refused, the answer before is `old`. */
export function useAnswer(path, delay = 0) {
  const [state, set] = useState({ path: null, data: null, error: null });
  useEffect(() => {
    if (path === null) return undefined;
    const ended = new AbortController();
    const timer = setTimeout(async () => {
      try {
        const data = await ask(path, { signal: ended.signal });
        if (!ended.signal.aborted) set({ path, data, error: null });
      } catch (error) {
        if (!ended.signal.aborted) set((before) => ({ path, data: before.data, error }));
      }
    }, delay);
    return () => {
      clearTimeout(timer);
      ended.abort();
    };
  }, [path, delay]);
  return { ...state, isOld: state.path !== path || state.error !== null };
}
