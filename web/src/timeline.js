// The decisions of an application as a timeline: equal consecutive ones are one entry. Pure.

import { changes, code, seconds } from "./words.js";

const equal = (a, b) => a.kind === b.kind && a.code === b.code && changes(a.current, a.approved) === changes(b.current, b.approved);

/**
 * Fold past cycles, newest first, into entries. `cycles` are the explained ones, which have the sentences.
 * An entry lasts until the next one begins; the newest until `now`.
 */
export function fold(lines, cycles, now) {
  const explained = new Map(cycles.filter((each) => each.plan).map((each) => [each.plan.id, each]));
  const entries = [];
  for (const line of lines) {
    const last = entries.at(-1);
    if (last && equal(last.line, line)) {
      last.count += 1;
      last.begin = seconds(line.at);
      last.ids.push(line.plan_id);
      last.outcome ??= line.outcome;
    } else {
      entries.push({ line, count: 1, begin: seconds(line.at), ids: [line.plan_id], outcome: line.outcome });
    }
  }
  entries.forEach((entry, i) => {
    entry.end = i === 0 ? Math.max(now ?? 0, seconds(entry.line.at)) : entries[i - 1].begin;
    entry.seconds = Math.max(0, entry.end - entry.begin);
    const found = entry.ids.find((id) => explained.has(id));
    entry.cycle = found ? explained.get(found) : null;
    entry.id = found ?? entry.ids[0];
    entry.sentence = entry.cycle?.plan.sentence ?? described(entry.line);
    entry.amended = entry.cycle?.plan.amendments.length ?? 0;
  });
  return entries;
}

/** A cycle whose explanation is not kept any more, in words. */
function described(line) {
  const reason = code(line.code);
  if (line.kind === "hold") return reason;
  if (line.kind === "restart_instance") return `Restart of an instance: ${reason}`;
  return `${changes(line.current, line.approved) || "No change"}: ${reason}`;
}

/** The newest of entries, newest first, that began at or before a time. */
export const entryAt = (entries, at) => entries.find((entry) => entry.begin <= at) ?? null;

/** Past cycles, newest first, each once, as many as `most`. */
export function merged(lines, more, most = 10_000) {
  const once = new Map([...lines, ...more].map((line) => [line.plan_id, line]));
  return [...once.values()].sort((a, b) => seconds(b.at) - seconds(a.at)).slice(0, most);
}
