import assert from "node:assert/strict";
import { test } from "node:test";
import { compared, differences } from "../src/compare.js";

const HOUR = 3600;
const NOON = Date.parse("2026-01-05T12:00:00Z") / 1000;
const instant = (at) => new Date(at * 1000).toISOString();
const score = (label, since, hours, slots, late) => ({
  label, planner: label, since: instant(since), seconds: hours * HOUR, slot_seconds: hours * HOUR * slots, late_seconds: late, restarts: hours, unanswered: 0,
});
const contender = (label, wanted, found, is_shadow = false) => ({
  label, planner: label, is_shadow, approved: wanted === null ? null : { work: wanted }, score: found,
});
const cycle = (at, ...contenders) => ({ plan: { id: `p${at}`, created_at: instant(at), current: { work: 2 }, contenders } });

test("a score that is older than a day counts from the oldest decision within it on", () => {
  const since = NOON - 48 * HOUR;
  const cycles = [
    cycle(NOON, contender("rate", 3, score("rate", since, 48, 3, 100)), contender("hpa", 4, score("hpa", since, 48, 4.5, 900), true)),
    cycle(NOON - 20 * HOUR, contender("rate", 2, score("rate", since, 28, 2, 100)), contender("hpa", 2, score("hpa", since, 28, 4, 300), true)),
    cycle(NOON - 30 * HOUR, contender("rate", 2, score("rate", since, 18, 1, 0)), contender("hpa", 2, score("hpa", since, 18, 1, 0), true)),
  ];
  const [rate, hpa] = compared(cycles, NOON);
  assert.deepEqual([rate.role, hpa.role], ["planner", "shadow"]);
  assert.equal(rate.seconds, 20 * HOUR);
  assert.equal(rate.since, NOON - 20 * HOUR);
  assert.equal(rate.slotHours, 48 * 3 - 28 * 2);
  assert.equal(rate.lateSeconds, 0);
  assert.equal(hpa.lateSeconds, 600);
  assert.equal(hpa.restarts, 20);
  assert.ok(Math.abs(hpa.difference - ((48 * 4.5 - 28 * 4) / (48 * 3 - 28 * 2) - 1)) < 1e-9);
  assert.equal(rate.difference, 0);
});

test("a score that began today counts whole, and one that began again does not count what was before", () => {
  const today = NOON - HOUR;
  const cycles = [
    cycle(NOON, contender("rate", null, score("rate", today, 1, 2, 5)), contender("b", null, score("b", today, 1, 2, 5))),
    cycle(NOON - 2 * HOUR, contender("rate", null, score("rate", NOON - 9 * HOUR, 7, 9, 999)), contender("b", null, null)),
  ];
  const [rate, other] = compared(cycles, NOON);
  assert.equal(rate.lateSeconds, 5);
  assert.equal(rate.slots, 2);
  assert.equal(other.role, "candidate");
  assert.deepEqual(compared([], NOON), []);
  assert.deepEqual(compared([{ plan: { contenders: [] } }], NOON), []);
});

test("nothing that was judged for no time has an average", () => {
  const [rate] = compared([cycle(NOON, contender("rate", null, score("rate", NOON, 0, 2, 0)), contender("b", null, null))], NOON);
  assert.equal(rate.slots, null);
  assert.equal(rate.lateShare, null);
  assert.equal(rate.difference, null);
});

test("decisions in which they differ, equal consecutive ones once", () => {
  const pair = (a, b) => [contender("rate", a, null), contender("hpa", b, null, true)];
  const cycles = [
    cycle(50, ...pair(3, 4)),
    cycle(40, ...pair(3, 4)),
    cycle(30, ...pair(2, null)),
    cycle(20, ...pair(null, 5)),
    { plan: null },
  ];
  const found = differences(cycles);
  assert.deepEqual(found.map(({ id, count }) => [id, count]), [["p50", 2], ["p20", 1]]);
  assert.deepEqual(found[1].wanted, [["rate", "no change"], ["hpa", "work 2 → 5"]]);
});
