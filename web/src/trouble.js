// Which application needs a person first, and which ones a filter leaves. Pure.

import { ago, duration } from "./words.js";

export const LEVELS = {
  person: { rank: 0, name: "Needs a person", sign: "▲" },
  late: { rank: 1, name: "Late", sign: "◆" },
  changing: { rank: 2, name: "Changing", sign: "↻" },
  unclear: { rank: 3, name: "Unclear", sign: "?" },
  paused: { rank: 4, name: "Paused", sign: "⏸" },
  fine: { rank: 5, name: "Fine", sign: "✓" },
};
const MOVING = new Set(["preparing", "requested", "applying", "verifying", "releasing", "rolling_back", "intended"]);

/** Level of one summary, with the reason in a sentence. */
export function trouble(summary) {
  const { lag_seconds: lag, objective_seconds: objective, silent = [], ages_seconds: ages = {} } = summary;
  if (summary.obstacle) return { level: "person", reason: summary.obstacle };
  if (summary.mode === "paused") return { level: "paused", reason: "Weir does not plan for it" };
  if (silent.includes("monitor")) {
    const age = ages.monitor;
    return { level: "person", reason: age == null ? "nothing was observed yet" : `the last observation is from ${ago(age)}` };
  }
  if (silent.length > 0) return { level: "person", reason: `silent: ${silent.join(", ")}` };
  const least = lag ?? summary.lower_bounds?.lag_seconds ?? null;
  if (objective != null && least != null && least > objective) {
    return { level: "late", reason: `lag is ${duration(least)}, the objective ${duration(objective)}` };
  }
  if (MOVING.has(summary.action_phase)) return { level: "changing", reason: summary.action ?? summary.action_phase };
  if (summary.status !== "running") return { level: "unclear", reason: `its state is ${summary.status ?? "unknown"}` };
  if (objective != null && lag == null) return { level: "unclear", reason: "its lag is unknown" };
  return { level: "fine", reason: "within its objective" };
}

const ratio = ({ lag_seconds: lag, objective_seconds: bound }) => (lag == null || !bound ? -1 : lag / bound);

/** Summaries with their trouble and engine, the worst first; then by lag against the objective, then by name. */
export function ranked(summaries) {
  return summaries
    .map((summary) => ({ summary, ...trouble(summary), engine: summary.engine ?? "unknown" }))
    .sort(
      (a, b) =>
        LEVELS[a.level].rank - LEVELS[b.level].rank ||
        ratio(b.summary) - ratio(a.summary) ||
        (a.summary.application < b.summary.application ? -1 : 1),
    );
}

/** The engine that a policy names, `unknown` without one. */
export function engine(policy) {
  return Object.keys(policy?.spec?.application ?? {})[0] ?? "unknown";
}

const ENGINES = { flink: "Flink", kafkaStreams: "Kafka Streams", consumerGroup: "Consumer group", service: "Service" };
export const engineName = (name) => ENGINES[name] ?? name;

export function filtered(rows, { text = "", namespace = "", engine: wanted = "", state = "" }) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return rows.filter(({ summary, engine: own, level }) => {
    const said = `${summary.application} ${summary.decision ?? ""} ${summary.mode ?? ""} ${summary.obstacle ?? ""}`.toLowerCase();
    return (
      (!namespace || summary.application.startsWith(`${namespace}/`)) &&
      (!wanted || own === wanted) &&
      (!state || level === state) &&
      words.every((word) => said.includes(word))
    );
  });
}

export const namespaces = (rows) => [...new Set(rows.map(({ summary }) => summary.application.split("/")[0]))].sort();

/** First and last row to draw of a list that begins `above` pixels over the window's upper edge. */
export function visible(above, height, rowHeight, count, margin = 6) {
  const first = Math.min(count, Math.max(0, Math.floor(above / rowHeight) - margin));
  const last = Math.min(count, Math.ceil((above + height) / rowHeight) + margin);
  return [first, Math.max(first, last)];
}
