import assert from "node:assert/strict";
import { test } from "node:test";
import { capacityOf, hotSubtask } from "../src/capacity.js";

const known = (value, more = {}) => ({ value, basis: "busy time", confidence: 0.8, ...more });

test("a capacity is an interval from what was taken in to what would be", () => {
  const found = capacityOf({
    parallelism: 2,
    true_processing_rate: known(1200),
    input_rate: known(500),
    capacities: [{ parallelism: 2, max_input_rate: 900 }, { parallelism: 3, max_input_rate: 1100 }],
  });
  assert.deepEqual([found.low, found.high], [900, 1200]);
  assert.equal(found.text, "900–1,200/s");
  assert.equal(found.title, "capacity 1,200/s, 80\u00a0% sure; it has taken in 900/s: busy time");
});

test("a bound that is known, one value, and nothing", () => {
  const unknown = { value: null, basis: "it was idle", confidence: 0 };
  assert.equal(capacityOf({ true_processing_rate: unknown, min_processing_rate: known(40) }).text, "≥ 40/s");
  assert.equal(capacityOf({ true_processing_rate: known(100), input_rate: known(99.5) }).text, "100/s");
  assert.equal(capacityOf({ true_processing_rate: known(100), input_rate: known(300) }).text, "100/s");
  assert.equal(capacityOf({ true_processing_rate: unknown }).title, "capacity unknown: it was idle");
  assert.equal(capacityOf(undefined).text, "unknown");
});

test("the busiest subtask is named where subtasks are uneven", () => {
  const operator = { parallelism: 4, utilization: known(0.5), skew: known(1.8) };
  assert.equal(hotSubtask(operator), "hot subtask 90\u00a0%");
  assert.equal(hotSubtask({ ...operator, utilization: known(0.9) }), "hot subtask 100\u00a0%");
  assert.equal(hotSubtask({ ...operator, utilization: known(null) }), "hot subtask ×1.8");
  assert.equal(hotSubtask({ ...operator, skew: known(1.1) }), null);
  assert.equal(hotSubtask({ ...operator, parallelism: 1 }), null);
  assert.equal(hotSubtask(undefined), null);
});
