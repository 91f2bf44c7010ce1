import assert from "node:assert/strict";
import { test } from "node:test";
import { changes, clock, duration, number, plain, quoted, rate, share, subtasks, vector } from "../src/words.js";

const spoken = (seconds) => duration(seconds).replaceAll("\u00a0", " ");

test("a duration has its two largest units", () => {
  const cases = [
    [0, "0 s"],
    [3.14, "3.1 s"],
    [45.2, "45 s"],
    [60, "1 min"],
    [90, "1 min 30 s"],
    [750, "12 min"],
    [3600, "1 h"],
    [12_000, "3 h 20 min"],
    [187_200, "2 d 4 h"],
  ];
  for (const [seconds, words] of cases) assert.equal(spoken(seconds), words);
});

test("the unknown is said, and never 0", () => {
  for (const words of [number, rate, share, duration]) assert.equal(words(null), "unknown");
  assert.equal(vector(null), "unknown");
  assert.equal(subtasks({}), null);
});

test("a time of another day has its date", () => {
  const noon = new Date(2026, 0, 5, 12, 0, 3).getTime() / 1000;
  assert.equal(clock(noon, noon + 60), "12:00:03");
  assert.equal(clock(noon, noon + 86_400), "2026-01-05 12:00:03");
});

test("only what changes is named", () => {
  assert.equal(changes({ a: 1, b: 2 }, { a: 1, b: 5 }), "b 2 → 5");
  assert.equal(changes({ a: 1 }, { a: 1 }), "");
  assert.equal(changes({ a: 1 }, null), "");
});

test("signs that reorder their neighbours are left out, letters of every script stay", () => {
  assert.equal(plain("\u202eab\u2066الطلبات\u2069"), "abالطلبات");
});

test("a word for the shell is quoted where it must be", () => {
  assert.equal(quoted("enrich=5"), "enrich=5");
  assert.equal(quoted("Source: it's=2"), "'Source: it'\\''s=2'");
  assert.equal(quoted("$(reboot)=2"), "'$(reboot)=2'");
});
