// The policy's planner beside its candidates and shadows, over the last day.

import { useMemo } from "preact/hooks";
import { format, resource } from "./address.js";
import { ask } from "./api.js";
import { compared, differences } from "./compare.js";
import { usePolled } from "./live.js";
import { Problem, Text } from "./parts.jsx";
import { Table } from "./timeline.jsx";
import { clock, counted, duration, number, seconds, share } from "./words.js";

const ROLES = { planner: "the policy's planner", candidate: "candidate", shadow: "shadow" };
const EVERY = 30_000;

export function Compare({ application }) {
  const asked = usePolled(
    `compare ${application}`,
    (signal) => ask(resource("applications", application, "/explain?limit=1000"), { signal }),
    EVERY,
  );
  const cycles = asked.data?.items ?? [];
  // The newest decision's time, so that the browser's clock does not count.
  const now = seconds(cycles[0]?.plan?.created_at) ?? 0;
  const lines = useMemo(() => compared(cycles, now), [asked.data]);
  const differing = useMemo(() => differences(cycles), [asked.data]);
  if (asked.data === null) {
    return asked.error ? <Problem error={asked.error}>Nothing can be compared:</Problem> : <p class="waiting">Reading the decisions …</p>;
  }
  return (
    <>
      <section class="heading">
        <div>
          <h1>
            Planners of <Text>{application.split("/")[1]}</Text>
          </h1>
          <p class="under">
            What the plans of each would have led to, by the predictor, with the arrivals that came: the last day, as far as
            decisions are kept.
          </p>
        </div>
        <p>
          <a class="button" href={format({ view: "application", application })}>
            Back to what is
          </a>
        </p>
      </section>
      {lines.length === 0 ? (
        <p class="card empty">
          Its policy has one planner, or nothing was judged yet. Add <code>shadows: [{"{name: hpa}"}]</code> to the policy: a
          shadow is asked in each cycle, judged, and never executed.
        </p>
      ) : (
        <section class="card" aria-labelledby="scores-title">
          <h2 id="scores-title">Cost and lateness</h2>
          <Table
            heads={["Planner", "Slots", "Slot-hours", "Against the first", "Late", "Changes", "Unanswered", "Judged"]}
            rows={lines.map((each) => [
              `${each.label} (${ROLES[each.role]}${each.label === each.planner ? "" : `, ${each.planner}`})`,
              `${number(each.slots)} on average`,
              number(each.slotHours),
              each.role === "planner" ? "" : difference(each.difference),
              `${duration(each.lateSeconds)} (${share(each.lateShare)})`,
              String(each.restarts),
              String(each.unanswered),
              `${duration(each.seconds)} since ${clock(each.since, now)}`,
            ])}
          />
        </section>
      )}
      {lines.length > 0 && (
        <section class="card" aria-labelledby="differences-title">
          <h2 id="differences-title">Where they differed</h2>
          {differing.length === 0 ? (
            <p class="waiting">In no decision that is kept.</p>
          ) : (
            <ol class="differences">
              {differing.map(({ at, id, wanted, count }) => (
                <li key={id}>
                  <a href={format({ view: "application", application, choices: { at, plan: id } })}>
                    <time datetime={at}>{clock(seconds(at), now)}</time>
                  </a>
                  {count > 1 && <small> {counted(count, "decision")}</small>}
                  <dl class="pairs">
                    {wanted.map(([label, text]) => (
                      <div key={label}>
                        <dt>
                          <Text>{label}</Text>
                        </dt>
                        <dd>
                          <Text>{text}</Text>
                        </dd>
                      </div>
                    ))}
                  </dl>
                </li>
              ))}
            </ol>
          )}
        </section>
      )}
    </>
  );
}

function difference(value) {
  if (value == null) return "unknown";
  if (Math.abs(value) < 0.005) return "as many";
  return `${share(Math.abs(value))} ${value > 0 ? "more" : "less"}`;
}
