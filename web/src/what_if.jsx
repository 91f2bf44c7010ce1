// What would happen at another load and parallelism, beside holding.

import { useMemo } from "preact/hooks";
import uPlot from "uplot";
import { format, resource } from "./address.js";
import { ask } from "./api.js";
import { Chart } from "./chart.jsx";
import { useAnswer, usePolled } from "./live.js";
import { Copy, Problem, Text } from "./parts.jsx";
import { Table } from "./timeline.jsx";
import { afterOf, bounds, command, loadOf, query, reach } from "./question.js";
import { changes, clock, counted, duration, number, rate, seconds, share } from "./words.js";

const EDGES = { present: "as now", expected: "the forecast's middle", "upper-edge": "its upper edge" };

const lateness = (late, recovers) => `${duration(late)}${recovers === false ? ", and does not recover" : ""}`;

/** So that a moving slider asks once. */
const DELAY = 150;

export function WhatIf({ application, choices, choose }) {
  const load = loadOf(choices.load);
  const parallelism = choices.parallelism ?? {};
  const after = afterOf(choices.after);
  const path = (vector) => resource("applications", application, `/what-if?${query(load, vector, after)}`);
  const analysis = usePolled(`reach ${application}`, (signal) => ask(resource("applications", application, "/analysis"), { signal }), 60_000);
  const policy = usePolled(`bounds ${application}`, (signal) => ask(resource("policies", application), { signal }), 60_000);
  const ahead = reach(analysis.data);
  const asked = useAnswer(path(parallelism), DELAY);
  const holding = useAnswer(path({}), DELAY);
  const answer = asked.data;
  const set = (name, value) => {
    const next = { ...parallelism };
    if (value === answer?.parallelism_now[name]) delete next[name];
    else next[name] = value;
    choose({ parallelism: next });
  };
  const said = command(application, load, parallelism, after);
  const limits = bounds(parallelism, policy.data);
  return (
    <>
      <section class="heading">
        <div>
          <h1>
            What if: <Text>{application.split("/")[1]}</Text>
          </h1>
          <p class="under">
            Predicted from the learned capacities, as the planner does it. Nothing is changed.{" "}
            {answer && `From the observation of ${clock(seconds(answer.observed_at))}.`}
          </p>
        </div>
        <p>
          <a class="button" href={format({ view: "application", application })}>
            Back to what is
          </a>
        </p>
      </section>
      {asked.error && <Problem error={asked.error}>No prediction:</Problem>}
      <div class="columns what-if">
        <section class="card" aria-label="Question">
          {(ahead > 0 || after > 0) && (
            <>
              <h2>When</h2>
              <div class="slider">
                <label for="after">At a time of the forecast</label>
                <input
                  id="after"
                  type="range"
                  min="0"
                  max={Math.max(ahead, after)}
                  step="60"
                  value={after}
                  aria-valuetext={after > 0 ? `in ${duration(after)}` : "now"}
                  onInput={(event) => choose({ after: event.target.value === "0" ? "" : event.target.value })}
                />
                <output for="after">{after > 0 ? `in ${duration(after)}` : "now"}</output>
              </div>
            </>
          )}
          <h2>Load</h2>
          <div class="slider">
            <label for="load">{after > 0 ? "Times the forecast" : "Times the present load"}</label>
            <input
              id="load"
              type="range"
              min="-2"
              max="3"
              step="0.05"
              value={Math.log2(load)}
              aria-valuetext={`times ${number(load)}`}
              onInput={(event) => choose({ load: (2 ** Number(event.target.value)).toFixed(2) })}
            />
            <output for="load">
              ×{load.toFixed(2)} <small>{answer && (after > 0 ? `up to ${rate(answer.arrival_rate)}` : rate(answer.arrival_rate_now * load))}</small>
            </output>
          </div>
          <h2>Parallelism</h2>
          {(answer?.operators ?? []).map((each, i) => (
            <Slider key={each.operator} id={`operator-${i}`} operator={each} value={parallelism[each.operator]} set={set} />
          ))}
          {answer === null && !asked.error && <p class="waiting">Reading the operators …</p>}
          <div class="tools">
            <button type="button" onClick={() => choose({ load: "", after: "", parallelism: {} })}>
              As it is
            </button>
            <Copy text={said}>Copy as command</Copy>
            {limits && <Copy text={limits}>Copy as policy bounds</Copy>}
          </div>
          <code class="command">{said}</code>
        </section>
        <section class={asked.isOld ? "card old" : "card"} aria-label="Answer" aria-busy={asked.isOld}>
          {answer && <Answer answer={answer} holding={holding.data} />}
        </section>
      </div>
    </>
  );
}

function Slider({ id, operator, value, set }) {
  const { operator: name, parallelism_now: now, utilization, min_parallelism: least } = operator;
  const shown = value ?? operator.parallelism;
  const most = Math.max(8, (now ?? 1) * 4, least ?? 1, shown);
  return (
    <div class="slider">
      <label for={id} title={name}>
        <Text>{name}</Text>
      </label>
      <input id={id} type="range" min="1" max={most} value={shown} onInput={(event) => set(name, Number(event.target.value))} />
      <output for={id}>
        {shown}
        <small>
          {" "}
          {now === shown ? "as now" : `now ${now ?? "unknown"}`} · {utilization == null ? "utilization unknown" : `${share(utilization)} used`}
          {least != null && least > shown ? ` · needs ${least}` : ""}
        </small>
      </output>
    </div>
  );
}

function Answer({ answer, holding }) {
  const figures = (each) => [
    counted(each.slots, "slot"),
    each.prediction ? duration(each.prediction.violation_seconds) : "unknown",
    each.prediction ? duration(each.prediction.max_lag_seconds) : "unknown",
    each.prediction ? duration(each.prediction.final_lag_seconds) : "unknown",
    each.prediction ? duration(each.prediction.downtime_seconds) : "unknown",
    each.keeps_up == null ? "unknown" : each.keeps_up ? "yes" : "no",
  ];
  const change = changes(answer.parallelism_now, answer.parallelism);
  const [asked, held] = [figures(answer), holding && change ? figures(holding) : null];
  const horizon = answer.prediction?.horizon_seconds;
  const names = ["Cost", "Late", "Highest lag", "Lag at the end", "Without processing", "Keeps up"];
  return (
    <>
      <p class="verdict">
        <Text>{answer.sentence}</Text>
      </p>
      {!answer.possible && <p class="problem">▲ Not possible: a limit forbids it.</p>}
      <Table
        heads={[
          horizon ? `In the next ${duration(horizon)}` : "Figure",
          change || "Holding",
          ...(held ? ["Holding"] : []),
        ]}
        rows={names.map((name, i) => [name, asked[i], ...(held ? [held[i]] : [])])}
      />
      {answer.loads?.length > 0 && (
        <Table
          heads={["Arrivals", "At most", "Late", "Late, holding"]}
          rows={answer.loads.map((each) => [
            EDGES[each.arrivals] ?? each.arrivals,
            rate(each.max_arrival_rate),
            lateness(each.late_seconds, each.recovers),
            lateness(each.hold_late_seconds, each.hold_recovers),
          ])}
        />
      )}
      <Lag answer={answer} holding={change ? holding : null} />
      <ul class="symptoms">
        {[
          ...answer.infeasible.map((each) => each.because),
          ...answer.unknown.map((each) => `${each.operator}: ${each.what} is unknown, ${each.because}`),
          ...(answer.notes ?? []),
          ...(answer.explained ?? []),
        ].map((each, i) => (
          <li key={i}>
            <Text>{each}</Text>
          </li>
        ))}
      </ul>
    </>
  );
}

function Lag({ answer, holding }) {
  const { times, series } = useMemo(() => {
    const course = (each) => {
      const points = each?.prediction?.points ?? [];
      return [points.map((point) => point.at_seconds), points.map((point) => point.lag_seconds)];
    };
    const [found, held] = [course(answer), course(holding)];
    const joined = uPlot.join([found, held].map((each) => (each[0].length > 0 ? each : [[0], [null]])));
    return {
      times: joined[0],
      series: [
        { label: "asked", colour: "lag", values: joined[1], width: 2 },
        { label: "holding", colour: "wanted", values: joined[2], dash: [5, 4] },
      ],
    };
  }, [answer, holding]);
  if (!answer.prediction?.points.length) return null;
  return (
    <Chart
      label={
        <>
          Lag in seconds, minutes from {answer.after_seconds > 0 ? "then" : "now"}: <span class="key"><i style={{ color: "var(--lag)" }} aria-hidden="true" /> this</span>{" "}
          {holding && <span class="key"><i class="dashed" style={{ color: "var(--wanted)" }} aria-hidden="true" /> holding</span>}
          {answer.objective_seconds != null && (
            <span class="key"><i class="dashed" style={{ color: "var(--late)" }} aria-hidden="true" /> objective</span>
          )}
        </>
      }
      times={times}
      series={series}
      lines={answer.objective_seconds == null ? [] : [answer.objective_seconds]}
      span={[0, answer.prediction.horizon_seconds]}
      unit={(value) => number(value)}
      timeUnit={(value) => `${number(value / 60)}`}
      height={180}
    />
  );
}
