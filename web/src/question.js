// A what-if question as a query of the API and as a command. Pure.

import { quoted } from "./words.js";

/** `bounds.max` of a policy that has none. */
const DEFAULT_MAX = 32;

/** The factor of a load as the address has it, 1 where it has none. */
export function loadOf(text) {
  const found = Number(text);
  return Number.isFinite(found) && found > 0 ? Math.min(1000, found) : 1;
}

const pairs = (parallelism) => Object.entries(parallelism).map(([name, value]) => `${name}=${value}`);

/** The seconds from now of a time that the address has, 0 where it has none. */
export function afterOf(text) {
  const found = Number(text);
  return Number.isInteger(found) && found > 0 ? Math.min(86_400, found) : 0;
}

export function query(load, parallelism, after = 0) {
  const found = new URLSearchParams({ load: `x${load}` });
  if (after > 0) found.set("at", `in ${after}s`);
  for (const each of pairs(parallelism)) found.append("parallelism", each);
  return found.toString();
}

export function command(application, load, parallelism, after = 0) {
  const words = ["weir", "what-if", application];
  if (after > 0) words.push("--at", `in ${after}s`);
  if (load !== 1) words.push("--load", `x${load}`);
  for (const each of pairs(parallelism)) words.push("-p", each);
  return words.map(quoted).join(" ");
}

/** What the forecast has to reach beyond the asked time: ten minutes of course, and the age of the analysis that is known. */
const BEYOND_SECONDS = 600 + 120;

/** How far ahead can be asked: as far as every source of an analysis has a forecast, in seconds; 0 without one. */
export function reach(analysis) {
  const forecasts = analysis?.forecasts ?? [];
  if (forecasts.length === 0 || forecasts.length < (analysis.sources?.length ?? 0)) return 0;
  return Math.max(0, Math.floor(Math.min(...forecasts.map((each) => each.path.at(-1)?.after_seconds ?? 0)) - BEYOND_SECONDS));
}

/**
 * Bounds for a policy under which each operator that was moved never has less, as YAML. Where one workload runs all operators, the
 * bounds are those of all. A `max` stands there only where the policy's own is lower.
 */
export function bounds(parallelism, policy) {
  const entries = Object.entries(parallelism);
  if (entries.length === 0) return "";
  const target = policy?.spec?.target ?? {};
  const highest = policy?.spec?.bounds?.max ?? DEFAULT_MAX;
  const own = policy?.spec?.bounds?.operators ?? {};
  const limits = (least, most) => `{min: ${least}${least > most ? `, max: ${least}` : ""}}`;
  if ((target.kubernetes && !target.kubernetes.workloads) || target.endpoint) {
    return `bounds: ${limits(Math.max(...entries.map(([, value]) => value)), highest)}\n`;
  }
  // Names as JSON strings, which YAML reads as they are, whatever signs they have.
  const lines = entries.map(([name, value]) => `    ${JSON.stringify(name)}: ${limits(value, own[name]?.max ?? highest)}`);
  return `bounds:\n  operators:\n${lines.join("\n")}\n`;
}
