// The forecast that an analysis published, of all sources together. Pure.

import { seconds } from "./words.js";

const interpolated = (path, after) => {
  const next = path.findIndex((each) => each.after_seconds >= after);
  if (next < 0) return path.at(-1).records_per_second;
  const [a, b] = [path[Math.max(0, next - 1)], path[next]];
  const span = b.after_seconds - a.after_seconds;
  const part = span > 0 ? (after - a.after_seconds) / span : 0;
  return a.records_per_second + (b.records_per_second - a.records_per_second) * Math.max(0, part);
};

/**
 * Return `{times, expected, upper}`: the expected rates, and the bound under which 90 % of the peaks until then stay (null where
 * none is known). Null where a source has no forecast.
 */
export function published(analysis, longest = Infinity) {
  const forecasts = analysis?.forecasts ?? [];
  if (forecasts.length === 0 || forecasts.length < (analysis.sources?.length ?? 0)) return null;
  if (forecasts.some((each) => each.path.length === 0)) return null;
  const begin = seconds(analysis.observed_at);
  const afters = [
    ...new Set(
      forecasts.flatMap((each) => [
        ...each.path.map((point) => point.after_seconds),
        ...each.horizons.filter((point) => point.peak_upper != null).map((point) => point.horizon_seconds),
      ]),
    ),
  ]
    .filter((each) => each <= longest)
    .sort((a, b) => a - b);
  const sum = (values) => (values.includes(null) ? null : values.reduce((all, each) => all + each, 0));
  return {
    times: afters.map((each) => begin + each),
    expected: afters.map((after) => sum(forecasts.map((each) => interpolated(each.path, after)))),
    upper: afters.map((after) =>
      sum(forecasts.map((each) => each.horizons.find((point) => point.horizon_seconds >= after)?.peak_upper ?? null)),
    ),
  };
}
