// What is known of one application's past, and how each event of its feed adds to it. Pure.

import { merged } from "./timeline.js";
import { seconds } from "./words.js";

/** Analyses in full: about 10 kB each. */
const MOST_ANALYSES = 60;

export const EMPTY = { lines: [], cycles: [], analyses: [], reading: null };

/** Add past cycles and explained ones, newest first each. What the feed brought meanwhile stays. */
export function withPast(journal, lines, cycles) {
  const once = new Map([...journal.cycles, ...cycles].map((each) => [each.correlation_id, each]));
  const sorted = [...once.values()].sort((a, b) => planned(b) - planned(a));
  return { ...journal, lines: merged(journal.lines, lines), cycles: sorted };
}

const planned = (cycle) => seconds(cycle.plan?.created_at) ?? 0;

export function withAnalysis(journal, analysis) {
  const { learned: _, policy: __, ...kept } = analysis;
  if (journal.analyses.some((each) => each.id === kept.id)) return journal;
  const analyses = [...journal.analyses, kept].sort((a, b) => seconds(a.observed_at) - seconds(b.observed_at));
  return { ...journal, analyses: analyses.slice(-MOST_ANALYSES) };
}

/** Records/s that all sources take in; null unless each is known. */
export function throughput(analysis) {
  const sources = analysis.sources.map(({ operator }) => analysis.operators.find((each) => each.operator === operator));
  const rates = sources.map((each) => each?.input_rate.value ?? null);
  return rates.length === 0 || rates.includes(null) ? null : rates.reduce((sum, each) => sum + each, 0);
}

/** Add an event of the feed. */
export function withEvent(journal, { kind, data }) {
  if (kind === "observation") return seconds(data.observed_at) < seconds(journal.reading?.observed_at) ? journal : { ...journal, reading: data };
  if (kind === "analysis") return withAnalysis(journal, data);
  if (kind === "plan") return withPlan(journal, data);
  return kind === "outcome" ? withOutcome(journal, data) : journal;
}

function withPlan(journal, plan) {
  if (journal.lines.some((each) => each.plan_id === plan.id)) return journal;
  const analysis = journal.analyses.find((each) => each.id === plan.analysis_id);
  const observation = journal.reading?.id === plan.observation_id ? journal.reading : null;
  const line = {
    at: plan.created_at,
    plan_id: plan.id,
    kind: plan.kind,
    code: plan.code,
    current: plan.current,
    approved: plan.action?.parallelism ?? null,
    lag_seconds: analysis?.lag_seconds.value ?? null,
    arrival_rate: analysis?.arrival_rate.value ?? null,
    throughput: analysis ? throughput(analysis) : null,
    outcome: null,
  };
  const reading = observation && {
    observed_at: observation.observed_at,
    status: observation.status,
    message: observation.message,
    observed: observation.deployment?.observed ?? {},
    problems: observation.problems.map((each) => `${each.where}: ${each.what}`),
  };
  const cycle = { correlation_id: plan.observation_id, reading, analysis: analysis ?? null, plan, outcomes: [] };
  // A plan that the feed brings late stands at its time.
  const place = journal.cycles.findIndex((each) => planned(each) <= planned(cycle));
  const [newer, older] = place < 0 ? [journal.cycles, []] : [journal.cycles.slice(0, place), journal.cycles.slice(place)];
  // As the service keeps them: of consecutive holds with one reason the latest.
  const last = older[0]?.plan;
  const isAgain = last?.kind === "hold" && plan.kind === "hold" && last.code === plan.code;
  const cycles = [...newer, cycle, ...(isAgain ? older.slice(1) : older)];
  return { ...journal, lines: merged([line], journal.lines), cycles };
}

function withOutcome(journal, outcome) {
  const known = journal.cycles.find((each) => each.plan?.id === outcome.plan_id)?.outcomes ?? [];
  // Of a feed that goes back: a phase that is over is not the present one again.
  const isOld = known.some((each) => seconds(each.at) > seconds(outcome.at));
  const lines = journal.lines.map((each) =>
    each.plan_id === outcome.plan_id && !isOld ? { ...each, outcome: outcome.phase } : each,
  );
  const cycles = journal.cycles.map((each) =>
    each.plan?.id === outcome.plan_id && !each.outcomes.some(({ id }) => id === outcome.id)
      ? { ...each, outcomes: [...each.outcomes, outcome].sort((a, b) => seconds(a.at) - seconds(b.at)) }
      : each,
  );
  return { ...journal, lines, cycles };
}

/** The newest analysis at a time, not older than `age` seconds; null for none. */
export function analysisAt(analyses, at, age) {
  const found = analyses.findLast((each) => seconds(each.observed_at) <= at + 0.5) ?? null;
  return found !== null && at - seconds(found.observed_at) <= age ? found : null;
}

/** The time of the cycle at a time, of cycles with the newest first; of the oldest for an earlier one. */
export function cycleTime(lines, at) {
  const found = lines.find((each) => seconds(each.at) <= at + 0.5) ?? lines.at(-1);
  return found === undefined ? at : seconds(found.at);
}

/** The usual time between two cycles, in seconds. */
export function pace(lines) {
  const gaps = lines.slice(0, 40).map((each, i) => (i === 0 ? null : seconds(lines[i - 1].at) - seconds(each.at)));
  const known = gaps.filter((each) => each > 0).sort((a, b) => a - b);
  return known[Math.floor(known.length / 2)] ?? 5;
}
