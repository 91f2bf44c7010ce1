import assert from "node:assert/strict";
import { test } from "node:test";
import { filtered, ranked, trouble, visible } from "../src/trouble.js";

const fine = {
  application: "shop/fine",
  mode: "act",
  status: "running",
  lag_seconds: 1,
  objective_seconds: 30,
  silent: [],
  ages_seconds: { monitor: 2, planner: 2 },
};

test("each state has its reason", () => {
  const cases = [
    [{}, "fine"],
    [{ lag_seconds: 31 }, "late"],
    [{ lag_seconds: null, lower_bounds: { lag_seconds: 40 } }, "late"],
    [{ lag_seconds: null }, "unclear"],
    [{ objective_seconds: null, lag_seconds: null }, "fine"],
    [{ status: "unreachable" }, "unclear"],
    [{ action_phase: "applying", action: "setting enrich 2 → 3" }, "changing"],
    [{ mode: "paused", silent: ["planner"] }, "paused"],
    [{ silent: ["planner"] }, "person"],
    [{ silent: ["monitor"], ages_seconds: {} }, "person"],
    [{ obstacle: "the target was not found" }, "person"],
  ];
  for (const [change, level] of cases) {
    const found = trouble({ ...fine, ...change });
    assert.equal(found.level, level);
    assert.ok(found.reason.length > 0);
  }
});

test("what needs a person stands first, then the latest against its objective", () => {
  const summaries = [
    fine,
    { ...fine, application: "shop/late", lag_seconds: 40 },
    { ...fine, application: "shop/later", lag_seconds: 300 },
    { ...fine, application: "shop/stuck", obstacle: "no target" },
    { ...fine, application: "shop/a" },
  ];
  const names = ranked(summaries).map(({ summary }) => summary.application);
  assert.deepEqual(names, ["shop/stuck", "shop/later", "shop/late", "shop/a", "shop/fine"]);
});

test("a filter takes namespace, engine, state and every word", () => {
  const rows = ranked([{ ...fine, engine: "flink" }, { ...fine, application: "other/x", decision: "Grows to 4" }]);
  const names = (choices) => filtered(rows, choices).map(({ summary }) => summary.application);
  assert.deepEqual(names({ namespace: "shop" }), ["shop/fine"]);
  assert.deepEqual(names({ engine: "flink" }), ["shop/fine"]);
  assert.deepEqual(names({ text: "GROWS x" }), ["other/x"]);
  assert.deepEqual(names({ state: "late" }), []);
  assert.equal(names({}).length, 2);
});

test("only the rows in the window are drawn, wherever it stands", () => {
  for (let above = -2000; above < 80_000; above += 317) {
    const [first, last] = visible(above, 900, 64, 1000);
    assert.ok(0 <= first && first <= last && last <= 1000);
    assert.ok(last - first <= 28);
    const top = Math.max(0, above / 64);
    if (top < 1000) assert.ok(first <= top && last >= Math.min(1000, (above + 900) / 64));
  }
  assert.deepEqual(visible(0, 900, 64, 0), [0, 0]);
});
