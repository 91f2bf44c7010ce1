// The timeline of decisions and holds; each opens into its reading, plan, amendments, alternatives and outcome.

import { useEffect, useRef, useState } from "preact/hooks";
import { format } from "./address.js";
import { Copy, Text } from "./parts.jsx";
import { REPORT } from "./report.js";
import { ago, changes, clock, code, counted, duration, number, rate, seconds, share, vector } from "./words.js";

const FIRST = 60;

export function Timeline({ entries, now, moment, opened, choose, application }) {
  const [most, more] = useState(FIRST);
  const chosen = entries.findIndex((each) => each.ids.includes(opened));
  const shown = entries.slice(0, Math.max(most, chosen + 1));
  const current = moment === null ? -1 : entries.findIndex((each) => each.begin <= moment);
  return (
    <section class="card timeline" aria-labelledby="timeline-title">
      <h2 id="timeline-title">Decisions</h2>
      {entries.length === 0 && <p class="waiting">No decision yet.</p>}
      <ol>
        {shown.map((each, i) => (
          <Entry
            key={each.begin}
            entry={each}
            now={now}
            isOpen={i === chosen}
            isCurrent={i === current}
            choose={choose}
            application={application}
          />
        ))}
      </ol>
      {shown.length < entries.length && (
        <button type="button" onClick={() => more(most + 200)}>
          {counted(entries.length - shown.length, "earlier one")}
        </button>
      )}
    </section>
  );
}

const SIGNS = { scale: "⇅", restart_instance: "↻", hold: "·" };
const KINDS = { scale: "Change", restart_instance: "Restart", hold: "Hold" };

function Entry({ entry, now, isOpen, isCurrent, choose, application }) {
  const place = useRef(null);
  useEffect(() => {
    if (isOpen) place.current.scrollIntoView({ block: "nearest" });
  }, [isOpen]);
  const { line, outcome } = entry;
  const toggle = () => choose(isOpen ? { plan: "" } : { plan: entry.id, at: line.at }, true);
  return (
    <li ref={place} class={`${line.kind}${isCurrent ? " current" : ""}`}>
      <button type="button" class="entry" aria-expanded={isOpen} onClick={toggle}>
        <span class="sign" aria-hidden="true">
          {SIGNS[line.kind]}
        </span>
        <span class="what">
          <span class={line.kind === "hold" ? "kind" : "only-read"}>{KINDS[line.kind]}: </span>
          <Text>{entry.sentence}</Text>
        </span>
        <span class="when">
          <time datetime={line.at}>{clock(entry.begin, now)}</time>
          {entry.count > 1 || line.kind === "hold" ? ` · for ${duration(entry.seconds)}` : ""}
          {entry.count > 1 ? ` · ${counted(entry.count, "cycle")}` : ""}
          {entry.amended > 0 ? ` · ${counted(entry.amended, "amendment")}` : ""}
          {outcome ? ` · ${code(outcome)}` : ""}
        </span>
      </button>
      {isOpen && <Decision entry={entry} now={now} application={application} />}
    </li>
  );
}

function Decision({ entry, now, application }) {
  const { cycle, line } = entry;
  const link = new URL(format({ view: "application", application, choices: { at: line.at, plan: entry.id } }), location.href);
  if (!cycle) {
    return (
      <div class="decision-detail">
        <p>
          Its explanation is not kept any more. {rate(line.arrival_rate)} arrived, lag was {duration(line.lag_seconds)}, running{" "}
          {vector(line.current)}.
        </p>
        {!REPORT && <Copy text={link.href}>Copy link</Copy>}
      </div>
    );
  }
  const { plan, analysis, reading, outcomes } = cycle;
  return (
    <div class="decision-detail">
      <div class="tools">
        {!REPORT && <Copy text={link.href}>Copy link</Copy>}
        <Copy text={JSON.stringify(cycle, null, 2)}>Copy as JSON</Copy>
      </div>
      <Part title="Reading">
        <dl class="pairs">
          <Pair name="Observed">
            {clock(seconds(plan.observed_at), now)}
            {now != null && `, ${ago(now - seconds(plan.observed_at))}`}
          </Pair>
          {reading && (
            <Pair name="State">
              {code(reading.status)} {reading.message && <Text>{`(${reading.message})`}</Text>}
            </Pair>
          )}
          <Pair name="Running">{vector(plan.current)}</Pair>
          {analysis && (
            <>
              <Pair name="Arrivals">
                <Estimated found={analysis.arrival_rate} as={rate} />
              </Pair>
              <Pair name="Lag">
                <Estimated found={analysis.lag_seconds} as={duration} />
              </Pair>
              <Pair name="Waiting">
                <Estimated found={analysis.lag_records} as={(value) => counted(value, "record")} />
              </Pair>
              <Pair name="Bottleneck">
                <Text>{analysis.bottleneck ?? "unknown"}</Text>
              </Pair>
            </>
          )}
        </dl>
        <Lines items={[...(analysis?.symptoms ?? []).map((each) => each.evidence), ...(reading?.problems ?? [])]} />
      </Part>
      <Part title={`Plan by ${plan.planner}`}>
        <p>
          <Text>{plan.sentence}</Text>
        </p>
        <Courses plan={plan} />
        <Lines items={plan.infeasible.map((each) => (each.operator ? `${each.operator}: ${each.because}` : each.because))} />
      </Part>
      <Part title="Guards">
        {plan.amendments.length === 0 ? (
          <p class="under">No guard changed the proposal{plan.proposed ? `: ${changes(plan.current, plan.proposed) || "no change"}` : ""}.</p>
        ) : (
          <ol class="amendments">
            {plan.amendments.map((each, i) => (
              <li key={i}>
                <b>{code(each.guard)}</b>: <Text>{each.because}</Text>{" "}
                <small>
                  {each.after === null
                    ? "→ hold"
                    : changes(each.before ?? plan.current, each.after) || "changed nothing"}
                </small>
              </li>
            ))}
          </ol>
        )}
      </Part>
      {plan.alternatives.length > 0 && (
        <Part title="Alternatives">
          <Table
            heads={["Vector", "Slots", "Late", "Not chosen because"]}
            rows={plan.alternatives.map((each) => [
              changes(plan.current, each.parallelism) || "no change",
              number(each.cost_slots),
              duration(each.violation_seconds),
              each.because,
            ])}
          />
        </Part>
      )}
      {plan.contenders?.length > 0 && (
        <Part title="Candidates and shadows">
          <Table
            heads={["Planner", "Wanted", "Slots", "Late", "Because"]}
            rows={plan.contenders.map((each) => [
              `${each.label}${each.is_shadow ? " (shadow)" : each.lost_because ? "" : " (chosen)"}`,
              each.approved ? changes(plan.current, each.approved) || "no change" : "hold",
              number(each.cost_slots),
              duration(each.violation_seconds),
              each.lost_because ?? each.sentence,
            ])}
          />
        </Part>
      )}
      <Part title="Outcome">
        {outcomes.length === 0 ? (
          <p class="under">{plan.kind === "hold" ? "A hold changes nothing." : plan.mode === "act" ? "No outcome yet." : "Advised only."}</p>
        ) : (
          <ol class="amendments">
            {outcomes.map((each) => (
              <li key={each.id}>
                <b>{code(each.phase)}</b> <time datetime={each.at}>{clock(seconds(each.at), now)}</time>:{" "}
                <Text>{each.sentence}</Text>
              </li>
            ))}
          </ol>
        )}
      </Part>
    </div>
  );
}

/** What is predicted for the plan, beside holding. */
function Courses({ plan }) {
  const columns = [
    [plan.kind === "hold" ? "Holding" : "This plan", plan.prediction],
    ["Holding", plan.kind === "hold" ? null : plan.hold_prediction],
  ].filter(([, found]) => found);
  if (columns.length === 0) return null;
  return (
    <Table
      heads={[`Next ${duration(columns[0][1].horizon_seconds)}`, ...columns.map(([name]) => name)]}
      rows={[
        ["Late", ...columns.map(([, each]) => duration(each.violation_seconds))],
        ["Highest lag", ...columns.map(([, each]) => duration(each.max_lag_seconds))],
        ["Lag at the end", ...columns.map(([, each]) => duration(each.final_lag_seconds))],
        ["Busiest operator", ...columns.map(([, each]) => share(each.max_utilization))],
        ["Without processing", ...columns.map(([, each]) => duration(each.downtime_seconds))],
      ]}
    />
  );
}

function Estimated({ found, as }) {
  const bound = found.value == null && found.lower_bound != null;
  return (
    <>
      {bound ? `≥ ${as(found.lower_bound)}` : found.value == null ? "unknown" : as(found.value)}{" "}
      <small>
        <Text>{found.basis}</Text>
        {found.value != null && `, ${share(found.confidence)} sure`}
      </small>
    </>
  );
}

function Part({ title, children }) {
  return (
    <section>
      <h3>
        <Text>{title}</Text>
      </h3>
      {children}
    </section>
  );
}

const Pair = ({ name, children }) => (
  <div>
    <dt>{name}</dt>
    <dd>{children}</dd>
  </div>
);

const Lines = ({ items }) =>
  items.length > 0 && (
    <ul class="symptoms">
      {items.map((each, i) => (
        <li key={i}>
          <Text>{each}</Text>
        </li>
      ))}
    </ul>
  );

export function Table({ heads, rows }) {
  return (
    <div class="scroll" tabindex={0} role="group" aria-label={heads.join(", ")}>
      <table>
        <thead>
          <tr>
            {heads.map((each, i) => (
              <th key={i} scope="col">
                {each}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, i) => (
            <tr key={i}>
              {row.map((each, j) => (
                <td key={j}>
                  <Text>{each}</Text>
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
