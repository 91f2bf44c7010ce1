// Every application, what needs a person first. Only the rows in the window are drawn.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { format, resource } from "./address.js";
import { all, ask } from "./api.js";
import { usePolled, useTick } from "./live.js";
import { Level, Problem, Sparkline, Text } from "./parts.jsx";
import { LEVELS, engineName, filtered, namespaces, ranked, visible } from "./trouble.js";
import { money, spent } from "./spend.js";
import { ago, clock, counted, duration, seconds, share, subtasks, vector } from "./words.js";

/** As often as an application is observed by default. */
const EVERY = 5_000;
/** A list that another page has read is recent enough; with the time between two readings no row is older than twice that. */
const SHARED = { "Cache-Control": "max-age=4" };
/** Points of a row's line. */
const POINTS = 60;

export function Fleet({ choices, choose }) {
  const summaries = usePolled("applications", (signal) => all("v1/applications", { signal, headers: SHARED }), EVERY);
  const rows = useMemo(() => ranked(summaries.data ?? []), [summaries.data]);
  const shown = useMemo(() => filtered(rows, choices), [rows, choices]);
  if (summaries.data === null) {
    return summaries.error ? (
      <Problem error={summaries.error}>No application can be shown:</Problem>
    ) : (
      <p class="waiting">Reading the applications …</p>
    );
  }
  return (
    <>
      <h1 class="only-read">Applications</h1>
      <Totals rows={rows} choices={choices} choose={choose} />
      <Cost rows={shown} />
      <Filters rows={rows} choices={choices} choose={choose} />
      {rows.length === 0 ? (
        <p class="card empty">
          There is no application yet. Write a policy and run <code>weir apply -f policy.yaml</code>, or start{" "}
          <code>weir run --flink URL</code>.
        </p>
      ) : shown.length === 0 ? (
        <p class="card empty">
          None of {counted(rows.length, "application")} is like that.{" "}
          <button
            type="button"
            onClick={() => choose({ text: "", namespace: "", engine: "", state: "" })}
          >
            Show all
          </button>
        </p>
      ) : (
        <Rows rows={shown} readAt={summaries.at} />
      )}
    </>
  );
}

function Totals({ rows, choices, choose }) {
  const counts = new Map(Object.keys(LEVELS).map((level) => [level, 0]));
  for (const { level } of rows) counts.set(level, counts.get(level) + 1);
  return (
    <ul class="totals" aria-label="Applications by state">
      <li>
        <button type="button" aria-pressed={!choices.state} onClick={() => choose({ state: "" })}>
          <b>{rows.length}</b> All
        </button>
      </li>
      {[...counts]
        .filter(([level, count]) => count > 0 || choices.state === level)
        .map(([level, count]) => (
          <li key={level}>
            <button
              type="button"
              aria-pressed={choices.state === level}
              onClick={() => choose({ state: choices.state === level ? "" : level })}
            >
              <b>{count}</b> <Level level={level} />
            </button>
          </li>
        ))}
    </ul>
  );
}

/** Slot-hours and money of the shown applications that act, against their static peaks. */
function Cost({ rows }) {
  const lines = useMemo(() => spent(rows.map(({ summary }) => summary)), [rows]);
  return lines.length > 0 && <p class="under">{lines.join(" ")}</p>;
}

function Filters({ rows, choices, choose }) {
  const spaces = useMemo(() => namespaces(rows), [rows]);
  const engines = useMemo(() => [...new Set(rows.map((each) => each.engine))].sort(), [rows]);
  return (
    <form class="filters" role="search" onSubmit={(event) => event.preventDefault()}>
      <label>
        <span>Text</span>
        <input
          type="search"
          value={choices.text ?? ""}
          placeholder="name, mode or decision"
          onInput={(event) => choose({ text: event.target.value })}
        />
      </label>
      <label>
        <span>Namespace</span>
        <select value={choices.namespace ?? ""} onChange={(event) => choose({ namespace: event.target.value })}>
          <option value="">all</option>
          {spaces.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </select>
      </label>
      <label>
        <span>Engine</span>
        <select value={choices.engine ?? ""} onChange={(event) => choose({ engine: event.target.value })}>
          <option value="">all</option>
          {engines.map((each) => (
            <option key={each} value={each}>
              {engineName(each)}
            </option>
          ))}
        </select>
      </label>
    </form>
  );
}

/** Height of a row in pixels, as the style sheet has it for the window's width. */
const rowHeight = () => Number.parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--row"));

function Rows({ rows, readAt }) {
  const list = useRef(null);
  const [seen, see] = useState({ first: 0, last: 20, height: 64 });
  const focus = useRef(null);
  useLayoutEffect(() => {
    const look = () => {
      const height = rowHeight();
      const [first, last] = visible(-list.current.getBoundingClientRect().top, innerHeight, height, rows.length);
      see((old) => (old.first === first && old.last === last && old.height === height ? old : { first, last, height }));
    };
    look();
    addEventListener("scroll", look, { passive: true });
    addEventListener("resize", look);
    return () => {
      removeEventListener("scroll", look);
      removeEventListener("resize", look);
    };
  }, [rows.length]);
  useEffect(() => {
    // A row that the arrow keys reached may have been drawn only now.
    if (focus.current === null) return;
    const link = list.current.querySelector(`[data-row="${focus.current}"] a`);
    if (link) {
      link.focus();
      focus.current = null;
    }
  });
  const move = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1 }[event.key];
    const from = event.target.closest?.("[data-row]")?.dataset.row;
    if (!step || from === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    const next = Math.min(rows.length - 1, Math.max(0, Number(from) + step));
    event.preventDefault();
    const drawn = list.current.querySelector(`[data-row="${next}"] a`);
    if (drawn) {
      drawn.focus();
    } else {
      focus.current = next;
      scrollBy(0, step * seen.height);
    }
  };
  const drawn = rows.slice(seen.first, seen.last);
  const lines = useLines(drawn);
  return (
    <div class="fleet" role="table" aria-label="Applications" aria-rowcount={rows.length + 1} onKeyDown={move}>
      <div class="row head" role="row" aria-rowindex={1}>
        {["State", "Application", "Lag", "Wanted · requested · running", "Last decision"].map((each) => (
          <span role="columnheader" key={each}>
            {each}
          </span>
        ))}
      </div>
      <div role="rowgroup" ref={list} style={{ height: `${rows.length * seen.height}px` }} class="rows">
        {drawn.map((row, i) => (
          <Row
            key={row.summary.application}
            row={row}
            index={seen.first + i}
            top={(seen.first + i) * seen.height}
            line={lines.get(row.summary.application)}
            readAt={readAt}
          />
        ))}
      </div>
    </div>
  );
}

function Row({ row, index, top, line, readAt }) {
  const { summary, level, reason, engine } = row;
  const [namespace, name] = summary.application.split("/");
  return (
    <div class={`row ${level}`} role="row" aria-rowindex={index + 2} data-row={index} style={{ top: `${top}px` }}>
      <span role="cell" class="state">
        <Level level={level} />
        <small title={reason}>
          <Text>{reason}</Text>
        </small>
      </span>
      <span role="cell" class="application">
        <a href={format({ view: "application", application: summary.application })} title={summary.application}>
          <Text>{name}</Text>
        </a>
        <small>
          <Text>{namespace}</Text> · {engineName(engine)} · {summary.mode ?? "no policy"}
        </small>
      </span>
      <span role="cell" class="lag">
        <span class="figures">
          <b>{lagText(summary)}</b>
          <small>{summary.objective_seconds == null ? "no objective of lag" : `of ${duration(summary.objective_seconds)}`}</small>
        </span>
        <Sparkline
          values={line ?? []}
          bound={summary.objective_seconds}
          label={`lag of the last cycles, now ${lagText(summary)}`}
        />
      </span>
      <span role="cell" class="parallelism">
        <Vectors summary={summary} />
      </span>
      <span role="cell" class="decision">
        <span title={summary.decision ?? ""}>
          <Text>{summary.decision ?? "No decision yet"}</Text>
        </span>
        <small>
          <Age summary={summary} readAt={readAt} />
          {summary.spend?.saved_share > 0 && ` · ${share(summary.spend.saved_share)} below a static peak`}
          {summary.spend?.money && `: ${money(summary.spend.money)}`}
        </small>
      </span>
    </div>
  );
}

function lagText({ lag_seconds: lag, lower_bounds: bounds }) {
  if (lag != null) return duration(lag);
  return bounds?.lag_seconds == null ? "unknown" : `≥ ${duration(bounds.lag_seconds)}`;
}

function Vectors({ summary }) {
  const { planned, requested, observed } = summary;
  const found = [planned, requested, observed].map(subtasks);
  const isSame = found.every((each) => each === found[0]);
  const names = ["wanted", "requested", "running"];
  return (
    <span class={isSame ? "vectors" : "vectors differ"} title={`running: ${vector(observed)}\nwanted: ${vector(planned)}`}>
      {found.map((each, i) => (
        <span key={names[i]}>
          <b>{each ?? "?"}</b>
          <small>{names[i]}</small>
        </span>
      ))}
    </span>
  );
}

/** The decision's age: what the service said, and the time since then. */
function Age({ summary, readAt }) {
  const now = useTick(5000);
  const age = summary.ages_seconds?.planner;
  if (age == null) return null;
  const decided = seconds(summary.decided_at);
  return (
    <time datetime={summary.decided_at} title={clock(decided)}>
      {ago(age + Math.max(0, now - readAt) / 1000)}
    </time>
  );
}

/** Lags of the last cycles, by application: read once for the rows that are drawn, then from their summaries. */
function useLines(rows) {
  const lines = useRef(new Map());
  const [, draw] = useState(0);
  const names = rows.map(({ summary }) => summary.application);
  for (const { summary } of rows) {
    const line = lines.current.get(summary.application);
    if (line && line.decidedAt !== summary.decided_at) {
      line.decidedAt = summary.decided_at;
      line.values = [...line.values, summary.lag_seconds].slice(-POINTS);
    }
  }
  useEffect(() => {
    const ended = new AbortController();
    const missing = rows.filter(({ summary }) => !lines.current.has(summary.application));
    const read = async () => {
      for (const { summary } of missing) {
        const { items } = await ask(resource("applications", summary.application, `/history?limit=${POINTS}`), {
          signal: ended.signal,
        });
        const values = items
          .slice(0, POINTS)
          .map((each) => each.lag_seconds)
          .reverse();
        lines.current.set(summary.application, { decidedAt: summary.decided_at, values });
        if (lines.current.size > 400) lines.current.delete(lines.current.keys().next().value);
        draw((n) => n + 1);
      }
    };
    // While rows fly past, none is read; a failure is said by the poll of the summaries.
    const timer = setTimeout(() => read().catch(() => {}), 150);
    return () => {
      clearTimeout(timer);
      ended.abort();
    };
  }, [names.join("\n")]);
  return new Map([...lines.current].map(([name, { values }]) => [name, values]));
}
