// What the plans of the policy's planner, its candidates and shadows would have led to, and where they differed. Pure.

import { changes, seconds } from "./words.js";

export const DAY = 86_400;
const FIGURES = ["seconds", "late_seconds", "slot_seconds", "restarts", "unanswered"];

/** None in the plans of a service that knows no candidates. */
const contenders = (plan) => plan?.contenders ?? [];
const role = ({ is_shadow, label }, own) => (is_shadow ? "shadow" : label === own ? "planner" : "candidate");

/**
 * A line for each planner of the newest cycle that has several: `{label, planner, role, since, slots, slotHours, lateSeconds,
 * lateShare, restarts, unanswered, seconds, difference}`, over the last day as far as decisions are kept. `cycles` are explained
 * ones, newest first; `difference` is its share of slot-hours more than the policy's planner, null where one is unknown.
 */
export function compared(cycles, now, span = DAY) {
  const newest = cycles.find((each) => contenders(each.plan).length > 0)?.plan;
  if (!newest) return [];
  const own = newest.contenders[0].label;
  const inside = cycles.filter((each) => each.plan && seconds(each.plan.created_at) >= now - span);
  const lines = newest.contenders
    .filter((each) => each.score)
    .map((each) => {
      const { score } = each;
      // Totals since the score began: of a day ago they are subtracted.
      const began = seconds(score.since);
      const first = began >= now - span ? null : oldest(inside, each.label, score.since);
      const sums = Object.fromEntries(FIGURES.map((name) => [name, score[name] - (first?.score[name] ?? 0)]));
      return {
        label: each.label,
        planner: each.planner,
        role: role(each, own),
        since: first ? first.at : began,
        seconds: sums.seconds,
        slots: sums.seconds > 0 ? sums.slot_seconds / sums.seconds : null,
        slotHours: sums.slot_seconds / 3600,
        lateSeconds: sums.late_seconds,
        lateShare: sums.seconds > 0 ? sums.late_seconds / sums.seconds : null,
        restarts: sums.restarts,
        unanswered: sums.unanswered,
      };
    });
  const base = lines.find((each) => each.role === "planner")?.slots;
  return lines.map((each) => ({ ...each, difference: base > 0 && each.slots != null ? each.slots / base - 1 : null }));
}

/** The oldest score of a planner that counts since the same time. */
function oldest(cycles, label, since) {
  for (const { plan } of [...cycles].reverse()) {
    const found = contenders(plan).find((each) => each.label === label)?.score;
    if (found?.since === since) return { score: found, at: seconds(plan.created_at) };
  }
  return null;
}

/**
 * The cycles in which the planners wanted different vectors, newest first: `{at, id, wanted}`, `wanted` by label in words. Of equal
 * consecutive ones the newest stands, with how many there are as `count`.
 */
export function differences(cycles) {
  const found = [];
  for (const { plan } of cycles) {
    if (contenders(plan).length < 2) continue;
    const wanted = plan.contenders.map((each) => [each.label, changes(plan.current, each.approved) || "no change"]);
    if (new Set(wanted.map(([, text]) => text)).size < 2) continue;
    const key = JSON.stringify(wanted);
    if (found.at(-1)?.key === key) found.at(-1).count += 1;
    else found.push({ key, at: plan.created_at, id: plan.id, wanted, count: 1 });
  }
  return found;
}
