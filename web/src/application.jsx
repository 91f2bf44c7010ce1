// One application: its course on one time axis, the graph at a moment, and the timeline of decisions.

import { useCallback, useEffect, useMemo, useState } from "preact/hooks";
import uPlot from "uplot";
import { format, resource } from "./address.js";
import { ask, stored } from "./api.js";
import { Chart } from "./chart.jsx";
import { published } from "./forecast.js";
import { Graph } from "./graph.jsx";
import { EMPTY, analysisAt, cycleTime, pace, withAnalysis, withEvent, withPast } from "./journal.js";
import { useFeed, usePolled, useTick } from "./live.js";
import { Level, Problem, Save, Text } from "./parts.jsx";
import { Pause } from "./pause.jsx";
import { REPORT } from "./report.js";
import { fold } from "./timeline.js";
import { Timeline } from "./timeline.jsx";
import { engine, engineName, trouble } from "./trouble.js";
import { ago, changes, clock, duration, instant, number, rate, seconds, subtasks, vector } from "./words.js";

const SPANS = { "15m": 900, "1h": 3600, "6h": 21_600, all: Infinity };
const SPAN_NAMES = { "15m": "15 min", "1h": "1 h", "6h": "6 h", all: "All" };
const DEFAULT_SPAN = "1h";

export function Application({ application, choices, choose }) {
  const at = seconds(choices.at);
  const [hovered, hover] = useState(null);
  const summary = usePolled(`summary ${application}`, (signal) => ask(resource("applications", application), { signal }), 5000);
  const policy = usePolled(`policy ${application}`, (signal) => ask(resource("policies", application), { signal }), 30_000);
  const journal = useJournal(application);
  const now = useServerTime(summary);
  // The cycle under the pointer, or the chosen one, so that figures, graph and timeline are of the same.
  const wanted = hovered ?? at;
  const moment = wanted === null ? null : cycleTime(journal.lines, wanted);
  const entries = useMemo(() => fold(journal.lines, journal.cycles, now), [journal.lines, journal.cycles, Math.floor((now ?? 0) / 5)]);
  const analysis = useAnalysis(application, journal, moment);
  const changed = () => {
    policy.again();
    summary.again();
  };
  if (summary.data === null) {
    return summary.error ? (
      <Problem error={summary.error}>{application} cannot be shown:</Problem>
    ) : (
      <p class="waiting">Reading {application} …</p>
    );
  }
  return (
    <>
      <Heading application={application} summary={summary.data} policy={policy.data} cycles={journal.cycles} now={now} changed={changed} />
      <div class="columns">
        <div class="wide">
          <Course
            application={application}
            journal={journal}
            summary={summary.data}
            analysis={analysis.found}
            now={now}
            at={at}
            moment={moment}
            choices={choices}
            choose={choose}
            hover={hover}
          />
          <section class="card" aria-labelledby="graph-title">
            <h2 id="graph-title">
              Operators{" "}
              <small>
                {analysis.found
                  ? `at ${clock(seconds(analysis.found.observed_at), now)}, over ${duration(analysis.found.window.seconds)}`
                  : ""}
              </small>
            </h2>
            {analysis.found?.operators.length > 0 ? (
              <Graph analysis={analysis.found} />
            ) : (
              <p class="waiting">{analysis.sentence ?? "No operator was analysed then."}</p>
            )}
            {analysis.found?.symptoms?.length > 0 && (
              <ul class="symptoms">
                {analysis.found.symptoms.map((each) => (
                  <li key={`${each.code} ${each.operator}`}>
                    <Text>{each.evidence}</Text>
                  </li>
                ))}
              </ul>
            )}
          </section>
        </div>
        <Timeline entries={entries} now={now} moment={moment} opened={choices.plan} choose={choose} application={application} />
      </div>
    </>
  );
}

/** The past of an application: read once and each minute, and what its feed brings meanwhile. */
function useJournal(application) {
  const [journal, set] = useState(EMPTY);
  const past = usePolled(
    `past ${application}`,
    async (signal) => {
      const [history, explained, analysis] = await Promise.all([
        ask(resource("applications", application, "/history?limit=10000"), { signal }),
        ask(resource("applications", application, "/explain?limit=200"), { signal }),
        ask(resource("applications", application, "/analysis"), { signal }).catch((error) => {
          if (error.status === 404) return null;
          throw error;
        }),
      ]);
      return { lines: history.items, cycles: explained.items, analysis };
    },
    60_000,
  );
  useEffect(() => {
    if (past.data === null) return;
    const { lines, cycles, analysis } = past.data;
    set((before) => {
      const after = withPast(before, lines, cycles);
      return analysis === null ? after : withAnalysis(after, analysis);
    });
  }, [past.data]);
  useFeed(
    resource("applications", application, "/events"),
    useCallback((event) => set((before) => withEvent(before, event)), []),
    past.again,
  );
  return journal;
}

/** The service's time in seconds: that of its newest reading, and its age. The browser's clock does not count. */
function useServerTime(summary) {
  const tick = useTick();
  const { data, at } = summary;
  if (data === null) return null;
  const decided = seconds(data.decided_at);
  const age = data.ages_seconds?.planner;
  if (REPORT) return seconds(REPORT.made_at);
  return decided == null || age == null ? null : decided + age + Math.max(0, tick - at) / 1000;
}

/** The analysis at a moment: one that the feed brought, else read from the feed's store. */
function useAnalysis(application, journal, moment) {
  const [state, set] = useState({ moment: null, found: null, sentence: null });
  const gap = useMemo(() => pace(journal.lines), [journal.lines]);
  const newest = journal.analyses.at(-1) ?? null;
  const near = moment === null ? newest : analysisAt(journal.analyses, moment, gap * 2.5);
  const isMissing = moment !== null && near === null;
  const place = isMissing ? Math.ceil(moment) : null;
  useEffect(() => {
    if (place === null) return undefined;
    const ended = new AbortController();
    const timer = setTimeout(async () => {
      const query = new URLSearchParams({
        follow: "false",
        since: instant(place - Math.max(30, gap * 4)),
        // An event's time in the feed is when it was stored.
        until: instant(place + Math.max(30, gap * 4)),
      });
      try {
        const events = await stored(resource("applications", application, `/events?${query}`), ended.signal);
        const analyses = events.filter((each) => each.kind === "analysis").map((each) => each.data);
        const found = analysisAt(analyses, place, gap * 4);
        const sentence = found ? null : "The analysis of that time is not kept any more.";
        if (!ended.signal.aborted) set({ moment: place, found, sentence });
      } catch (error) {
        if (!ended.signal.aborted) set({ moment: place, found: null, sentence: error.message });
      }
    }, 250);
    return () => {
      clearTimeout(timer);
      ended.abort();
    };
  }, [application, place]);
  if (!isMissing) return { found: near, sentence: null };
  if (state.moment === place) return state;
  return { found: null, sentence: "Reading the analysis of that time …" };
}

function Heading({ application, summary, policy, cycles, now, changed }) {
  const { level, reason } = trouble(summary);
  const [namespace, name] = application.split("/");
  return (
    <section class="heading">
      <div>
        <h1>
          <Text>{name}</Text>
        </h1>
        <p class="under">
          <Text>{namespace}</Text> · {engineName(engine(policy))} · planner <Text>{policy?.spec?.planner?.name ?? "rate"}</Text> ·{" "}
          {summary.mode ?? "no policy"}
        </p>
        <p class="sentence">
          <Level level={level} /> {level !== "fine" && <Text>{reason}</Text>}
        </p>
        {summary.decision && (
          <p class="sentence">
            <strong>Last decision:</strong> <Text>{summary.decision}</Text>{" "}
            <small>{now != null && ago(now - seconds(summary.decided_at))}</small>
          </p>
        )}
        {summary.spend_sentence && <p class="under">{summary.spend_sentence}</p>}
        {summary.problems?.length > 0 && (
          <ul class="symptoms">
            {summary.problems.map((each) => (
              <li key={each}>
                <Text>{each}</Text>
              </li>
            ))}
          </ul>
        )}
      </div>
      {!REPORT && <Pause application={application} summary={summary} policy={policy} cycles={cycles} now={now} changed={changed} />}
    </section>
  );
}

/** What is shown of the time axis: `[from, to]`. */
function shownSpan(zoom, lines, now, ahead) {
  const drawn = /^([\d.]+)~([\d.]+)$/.exec(zoom ?? "");
  if (drawn) return [Number(drawn[1]), Number(drawn[2])];
  const newest = now ?? seconds(lines[0]?.at) ?? 0;
  const oldest = seconds(lines.at(-1)?.at) ?? newest - 60;
  const wanted = SPANS[zoom] ?? SPANS[DEFAULT_SPAN];
  const from = Math.max(oldest, newest - wanted);
  const length = Math.max(60, newest - from);
  return [newest - length, newest + Math.min(ahead, length * 0.25)];
}

function Course({ application, journal, summary, analysis, now, at, moment, choices, choose, hover }) {
  const objective = summary.objective_seconds;
  const oldestFirst = useMemo(() => [...journal.lines].reverse(), [journal.lines]);
  const forecast = useMemo(() => published(analysis), [analysis]);
  // Of the newest analysis, so that scrubbing moves no axis.
  const ahead = journal.analyses.at(-1)?.forecasts?.length > 0 ? 3600 : 0;
  const span = shownSpan(choices.zoom, journal.lines, now == null ? null : Math.floor(now), ahead);
  const plots = useMemo(() => tables(oldestFirst, forecast), [oldestFirst, forecast]);
  const marks = useMemo(
    () => oldestFirst.filter((each) => each.kind !== "hold" && each.outcome).map((each) => seconds(each.at)),
    [oldestFirst],
  );
  const pick = (time) => choose({ at: instant(nearest(oldestFirst, time)) }, true);
  const zoom = (drawn) => choose({ zoom: drawn ? drawn.map((each) => each.toFixed(0)).join("~") : "" });
  const shared = { span, at: moment, hover, pick, zoom, marks };
  if (oldestFirst.length === 0) return <p class="card waiting">No cycle is kept of it yet.</p>;
  const line = lineAt(oldestFirst, moment);
  const step = (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -12, PageDown: 12 };
    const index = oldestFirst.indexOf(line);
    if (event.key in steps) {
      const next = Math.min(oldestFirst.length - 1, Math.max(0, index + steps[event.key]));
      choose({ at: oldestFirst[next].at });
    } else if (event.key === "Home") choose({ at: oldestFirst[0].at });
    else if (event.key === "End" || event.key === "Escape") choose({ at: "" });
    else return;
    event.preventDefault();
  };
  return (
    <section class="card course" aria-label="Course">
      <div class="bar">
        <Readout line={line} now={now} isNow={moment === null} objective={objective} summary={summary} />
        <div class="choices" role="group" aria-label="Shown time">
          {at !== null && (
            <button type="button" onClick={() => choose({ at: "" }, true)}>
              Now
            </button>
          )}
          {Object.keys(SPANS).map((each) => (
            <button
              type="button"
              key={each}
              aria-pressed={(choices.zoom || DEFAULT_SPAN) === each}
              onClick={() => choose({ zoom: each })}
            >
              {SPAN_NAMES[each]}
            </button>
          ))}
          {!REPORT && (
            <Save
              path={resource("applications", application, `/report${at === null ? "" : `?${new URLSearchParams({ at: instant(at) })}`}`)}
              name={`weir-${application.replace("/", "-")}.html`}
            >
              Save as a file
            </Save>
          )}
        </div>
      </div>
      <div
        class="plots"
        tabindex={0}
        role="slider"
        aria-label="Moment; arrow keys go through the cycles, End to now"
        aria-valuemin={0}
        aria-valuemax={oldestFirst.length - 1}
        aria-valuenow={Math.max(0, oldestFirst.indexOf(line))}
        aria-valuetext={said(line, now)}
        onKeyDown={step}
      >
        <Chart
          {...shared}
          label={
            <>
              Records/s: <Key colour="arrivals">arrivals</Key> <Key colour="throughput" isDashed>throughput</Key>
              {forecast && (
                <Key colour="forecast" isDashed>
                  forecast of then, to its 90 % bound
                </Key>
              )}
            </>
          }
          times={plots.rates[0]}
          series={plots.rateSeries}
          bands={forecast ? [{ series: [4, 3] }] : []}
          unit={(value) => rate(value).replace("/s", "")}
        />
        <Chart
          {...shared}
          label={
            <>
              Lag in seconds: <Key colour="lag">lag</Key>
              {objective != null && (
                <Key colour="late" isDashed>
                  objective {duration(objective)}
                </Key>
              )}
            </>
          }
          times={plots.lag[0]}
          series={plots.lagSeries}
          lines={objective == null ? [] : [objective]}
          unit={(value) => number(value)}
        />
        <Chart
          {...shared}
          label={
            <>
              Subtasks: <Key colour="running">running</Key>{" "}
              <Key colour="wanted" isDashed>
                wanted
              </Key>{" "}
              <Key colour="action" isDashed>
                action
              </Key>
            </>
          }
          times={plots.lag[0]}
          series={plots.parallelismSeries}
          unit={(value) => number(value)}
          height={104}
        />
      </div>
      <p class="hint">Point to scrub, click to keep a moment, drag to zoom, double click for all.</p>
    </section>
  );
}

function Key({ colour, isDashed, children }) {
  return (
    <span class="key">
      <i class={isDashed ? "dashed" : undefined} style={{ color: `var(--${colour})` }} aria-hidden="true" /> {children}
    </span>
  );
}

/** Columns for the plots. Times that only the forecast has leave no gap in what was measured. */
function tables(lines, forecast) {
  const times = lines.map((each) => seconds(each.at));
  const column = (read) => lines.map((each) => read(each) ?? null);
  const measured = [times, column((each) => each.arrival_rate), column((each) => each.throughput)];
  const later = forecast ?? { times: [times.at(-1) ?? 0], expected: [null], upper: [null] };
  const rates = uPlot.join([measured, [later.times, later.expected, later.upper]]);
  const wanted = (each) => subtasks(each.approved ?? each.current);
  return {
    rates,
    rateSeries: [
      { label: "arrivals", colour: "arrivals", values: rates[1] },
      { label: "throughput", colour: "throughput", values: rates[2], dash: [5, 3] },
      { label: "forecast", colour: "forecast", values: rates[3], dash: [2, 3] },
      { label: "upper", colour: "forecast", values: rates[4], width: 0.6 },
    ],
    lag: [times],
    lagSeries: [{ label: "lag", colour: "lag", values: column((each) => each.lag_seconds), fill: true }],
    parallelismSeries: [
      { label: "wanted", colour: "wanted", values: column(wanted), steps: true, dash: [4, 3] },
      { label: "running", colour: "running", values: column((each) => subtasks(each.current)), steps: true, width: 2 },
    ],
  };
}

/** The cycle at a time, of cycles with the oldest first; the newest for null. */
const lineAt = (lines, at) => (at === null ? lines.at(-1) : (lines.findLast((each) => seconds(each.at) <= at + 0.5) ?? lines[0]));
const nearest = (lines, at) => seconds(lineAt(lines, at).at);

const said = (line, now) =>
  `${clock(seconds(line.at), now)}: ${rate(line.arrival_rate)} arrive, lag ${duration(line.lag_seconds)}, running ${vector(line.current)}`;

function Readout({ line, now, isNow, objective, summary }) {
  const time = seconds(line.at);
  const isLate = objective != null && line.lag_seconds > objective;
  return (
    <dl class="readout">
      <div>
        <dt>{isNow ? "Newest cycle" : "Moment"}</dt>
        <dd>
          {clock(time, now)} <small>{now != null && ago(now - time)}</small>
        </dd>
      </div>
      <div>
        <dt>Arrivals</dt>
        <dd>{rate(line.arrival_rate)}</dd>
      </div>
      <div>
        <dt>Throughput</dt>
        <dd>{rate(line.throughput)}</dd>
      </div>
      <div>
        <dt>Lag</dt>
        <dd class={isLate ? "late" : undefined}>
          {duration(line.lag_seconds)} {objective != null && <small>of {duration(objective)}{isLate ? ", late" : ""}</small>}
        </dd>
      </div>
      <div>
        <dt>Running</dt>
        <dd title={vector(line.current)}>
          {subtasks(line.current) ?? "unknown"} <small>{counts(line.current)}</small>
        </dd>
      </div>
      <div>
        <dt>Change</dt>
        <dd>{changes(line.current, line.approved) || (isNow && changes(summary.observed, summary.requested)) || "none"}</dd>
      </div>
    </dl>
  );
}

/** The subtasks of a short vector, operator by operator. */
const counts = (found) => {
  const values = Object.values(found ?? {});
  return values.length > 1 && values.length <= 8 ? values.join("/") : "";
};
