// What an operator can process as an interval, and its busiest subtask. Pure.

import { number, rate, share } from "./words.js";

/** From here on a busiest subtask says something: below it lies the noise of even subtasks. */
const SKEWED = 1.25;

/**
 * The capacity of an operator: `{low, high, text, title}`. `low` is what it has taken in at this parallelism or what is proven, `high`
 * what it would if all subtasks were busy; null for what is unknown.
 */
export function capacityOf(found) {
  const estimate = found?.true_processing_rate;
  const high = estimate?.value ?? null;
  const point = found?.capacities?.find((each) => each.parallelism === found.parallelism);
  const proven = [found?.min_processing_rate?.value, estimate?.lower_bound, point?.max_input_rate, found?.input_rate?.value];
  const known = proven.filter((each) => each != null && (high === null || each <= high));
  const low = known.length > 0 ? Math.max(...known) : null;
  const sure = high === null ? "" : `, ${share(estimate.confidence)} sure`;
  const basis = estimate?.basis ? `: ${estimate.basis}` : "";
  if (high === null && low === null) return { low, high, text: "unknown", title: `capacity unknown${basis}` };
  if (high === null) return { low, high, text: `≥ ${rate(low)}`, title: `capacity at least ${rate(low)}${basis}` };
  const isClose = low === null || low > high * 0.98;
  const text = isClose ? rate(high) : `${rate(low).replace("/s", "")}–${rate(high)}`;
  const took = low === null ? "" : `; it has taken in ${rate(low)}`;
  return { low, high, text, title: `capacity ${rate(high)}${sure}${took}${basis}` };
}

/** The busy share of an operator's busiest subtask, in words; null while its subtasks are even or unknown. */
export function hotSubtask(found) {
  const skew = found?.skew?.value;
  if (skew == null || skew <= SKEWED || found.parallelism < 2) return null;
  const used = found.utilization?.value;
  return used == null ? `hot subtask ×${number(skew)}` : `hot subtask ${share(Math.min(1, used * skew))}`;
}
