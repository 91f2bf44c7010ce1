import assert from "node:assert/strict";
import { test } from "node:test";
import { EventReader, later } from "../src/events.js";
import { published } from "../src/forecast.js";
import { EMPTY, analysisAt, cycleTime, pace, withEvent, withPast } from "../src/journal.js";
import { layered } from "../src/layout.js";
import { entryAt, fold, merged } from "../src/timeline.js";

const at = (second) => new Date(Date.UTC(2026, 0, 5, 0, 0, second)).toISOString();
const line = (second, code, more = {}) => ({
  at: at(second),
  plan_id: `p${second}`,
  kind: "hold",
  code,
  current: { a: 1 },
  approved: null,
  outcome: null,
  ...more,
});

test("equal consecutive decisions are one, with the time that they lasted", () => {
  const lines = [line(50, "cooldown"), line(40, "held"), line(30, "held"), line(20, "held"), line(10, "cooldown")];
  const cycles = [{ plan: { id: "p30", sentence: "stays at 1", amendments: [{}] } }];
  const entries = fold(lines, cycles, Date.parse(at(60)) / 1000);
  assert.deepEqual(entries.map((each) => [each.count, each.seconds]), [[1, 10], [3, 30], [1, 10]]);
  assert.deepEqual([entries[1].sentence, entries[1].amended, entries[1].id], ["stays at 1", 1, "p30"]);
  assert.equal(entries[0].sentence, "cooldown");
  assert.equal(entryAt(entries, Date.parse(at(35)) / 1000), entries[1]);
  assert.equal(entryAt(entries, Date.parse(at(1)) / 1000), null);
});

test("another vector or another code is another decision", () => {
  const grown = (second, to) => line(second, "overloaded", { kind: "scale", approved: { a: to } });
  assert.equal(fold([grown(30, 3), grown(20, 2), line(10, "overloaded")], [], null).length, 3);
});

test("cycles that come twice count once, newest first", () => {
  const once = merged([line(10, "held")], [line(20, "held"), line(10, "held")]);
  assert.deepEqual(once.map((each) => each.plan_id), ["p20", "p10"]);
});

const plan = (second, more = {}) => ({
  id: `p${second}`,
  kind: "hold",
  code: "held",
  analysis_id: `a${second}`,
  observation_id: `o${second}`,
  created_at: at(second),
  current: { a: 1 },
  amendments: [],
  ...more,
});
const analysis = (second) => ({
  id: `a${second}`,
  observed_at: at(second),
  lag_seconds: { value: 2 },
  arrival_rate: { value: 10 },
  sources: [{ operator: "a" }],
  operators: [{ operator: "a", input_rate: { value: 9 } }],
  learned: { large: true },
});

test("a feed that skips, repeats and goes back leads to what one in order does", () => {
  const phase = (id, second, name) => ({ kind: "outcome", data: { id, plan_id: "p20", phase: name, at: at(second) } });
  const ordered = [
    { kind: "observation", data: { id: "o20", observed_at: at(20), status: "running", message: "", problems: [] } },
    { kind: "analysis", data: analysis(20) },
    { kind: "plan", data: plan(20, { kind: "scale", code: "short", action: { parallelism: { a: 2 } } }) },
    phase("x", 21, "applying"),
    phase("y", 25, "verified"),
    { kind: "observation", data: { id: "o30", observed_at: at(30), status: "running", message: "", problems: [] } },
    { kind: "analysis", data: analysis(30) },
    { kind: "plan", data: plan(30) },
  ];
  const told = (events) => events.reduce(withEvent, withPast(EMPTY, [line(10, "held")], []));
  const expected = told(ordered);
  assert.deepEqual(expected.lines.map((each) => each.outcome), [null, "verified", null]);
  assert.deepEqual(told([...ordered, ...ordered]), expected);
  assert.deepEqual(told([...ordered, ...ordered.slice(0, 4)]), expected);
  assert.deepEqual(told([...ordered, ...[...ordered].reverse()]), expected);
  // Plans in another order, and outcomes in another order: each at its time.
  const shuffled = told([...ordered.slice(5), ...ordered.slice(0, 3), ordered[4], ordered[3]]);
  assert.deepEqual(shuffled.lines, expected.lines);
  assert.deepEqual(shuffled.cycles.map((each) => each.plan.id), ["p30", "p20"]);
  assert.deepEqual(shuffled.cycles[1].outcomes.map((each) => each.id), ["x", "y"]);
  // What was skipped is filled by the next reading of the past.
  const skipped = withPast(told([ordered[7]]), expected.lines, expected.cycles);
  assert.deepEqual(skipped.lines.map((each) => each.outcome), [null, "verified", null]);
});

test("the place in the feed only moves on", () => {
  assert.equal(later("20-1", "20-0"), "20-1");
  assert.equal(later("20-1", "20-10"), "20-10");
  assert.equal(later("9-5", "10"), "10");
  assert.equal(later(null, "10-0"), "10-0");
  assert.equal(later("10-0", ""), "10-0");
  assert.equal(later("10-0", "nonsense"), "10-0");
});

test("the feed continues what was read, and a repeated event changes nothing", () => {
  let journal = withPast(EMPTY, [line(10, "held")], []);
  const events = [
    { kind: "analysis", data: analysis(20) },
    { kind: "plan", data: plan(20) },
    { kind: "plan", data: plan(20) },
    { kind: "outcome", data: { id: "x", plan_id: "p20", phase: "verified" } },
    { kind: "outcome", data: { id: "x", plan_id: "p20", phase: "verified" } },
    { kind: "something-new", data: {} },
  ];
  for (const each of events) journal = withEvent(journal, each);
  assert.deepEqual(journal.lines.map((each) => each.plan_id), ["p20", "p10"]);
  const [newest] = journal.lines;
  assert.deepEqual([newest.lag_seconds, newest.throughput, newest.outcome], [2, 9, "verified"]);
  assert.equal(journal.cycles[0].outcomes.length, 1);
  assert.equal("learned" in journal.analyses[0], false);
});

test("an event that is older than what is there takes its place in time", () => {
  const journal = [20, 10, 30].reduce((before, second) => withEvent(before, { kind: "plan", data: plan(second) }), EMPTY);
  assert.deepEqual(journal.lines.map((each) => each.plan_id), ["p30", "p20", "p10"]);
  assert.equal(pace(journal.lines), 10);
});

test("a moment has the analysis of before it, unless that is too old", () => {
  const analyses = [analysis(10), analysis(20)];
  const time = (second) => Date.parse(at(second)) / 1000;
  assert.equal(analysisAt(analyses, time(15), 10).id, "a10");
  assert.equal(analysisAt(analyses, time(25), 10).id, "a20");
  assert.equal(analysisAt(analyses, time(45), 10), null);
  assert.equal(analysisAt(analyses, time(5), 10), null);
});

test("a moment is that of a cycle", () => {
  const time = (second) => Date.parse(at(second)) / 1000;
  const lines = [line(30, "held"), line(20, "held")];
  assert.deepEqual([35, 30, 29.7, 29, 3].map((second) => cycleTime(lines, time(0) + second) - time(0)), [30, 30, 30, 20, 20]);
  assert.equal(cycleTime([], 7), 7);
});

test("events are read from pieces of any size", () => {
  const text = ": weir\n\nid: 1-0\nevent: plan\ndata: {\"a\":\ndata: 1}\n\nid: 2-0\r\ndata: x\r\n\r\n";
  const wanted = [
    { id: "1-0", kind: "plan", data: '{"a":\n1}' },
    { id: "2-0", kind: "message", data: "x" },
  ];
  for (const size of [1, 2, 3, 7, 1000]) {
    const reader = new EventReader();
    const found = [];
    for (let i = 0; i < text.length; i += size) found.push(...reader.add(text.slice(i, i + size)));
    assert.deepEqual(found, wanted);
  }
  assert.throws(() => new EventReader(10).add("data: more than ten"), RangeError);
});

test("the forecasts of all sources are one, and none without each", () => {
  const source = (rate, upper) => ({
    path: [
      { after_seconds: 10, records_per_second: rate },
      { after_seconds: 30, records_per_second: rate + 20 },
    ],
    horizons: [{ horizon_seconds: 20, peak_upper: upper }],
  });
  const found = published({ observed_at: at(0), sources: [{}, {}], forecasts: [source(100, 150), source(50, 70)] });
  assert.deepEqual(found.expected, [150, 170, 190]);
  assert.deepEqual(found.upper, [220, 220, null]);
  assert.equal(found.times[1] - found.times[0], 10);
  assert.equal(published({ observed_at: at(0), sources: [{}, {}], forecasts: [source(100, 150)] }), null);
  assert.equal(published(null), null);
});

test("operators stand behind all that they read from, also in a cycle", () => {
  const operators = ["join", "left", "right", "map", "sink"].map((name) => ({ name }));
  const edges = [
    ["left", "map"],
    ["map", "join"],
    ["right", "join"],
    ["join", "sink"],
    ["gone", "sink"],
  ].map(([source, target]) => ({ source, target }));
  const found = layered(operators, edges);
  assert.deepEqual(found.columns, [["left", "right"], ["map"], ["join"], ["sink"]]);
  assert.equal(found.edges.length, 4);
  const turning = layered(operators, [...edges, { source: "sink", target: "left" }]);
  assert.equal(turning.columns.flat().length, 5);
});
