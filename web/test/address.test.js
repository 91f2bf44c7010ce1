import assert from "node:assert/strict";
import { test } from "node:test";
import { format, parse, resource } from "../src/address.js";
import { afterOf, bounds, command, loadOf, query, reach } from "../src/question.js";

test("an address names the application, the moment and the decision, and is read back", () => {
  const place = { view: "application", application: "shop/orders", choices: { at: "2026-01-05T00:39:20Z", plan: "467a6d09" } };
  assert.deepEqual(parse(format(place)), place);
});

test("the planners of an application have an address", () => {
  const place = { view: "compare", application: "shop/orders", choices: {} };
  assert.deepEqual(parse(format(place)), place);
});

test("a report shows its application and moment unless its address says another", () => {
  const report = { application: "shop/orders", at: "2026-01-05T12:00:00Z" };
  const { view, application, choices } = parse("", report);
  assert.deepEqual([view, application, choices.at], ["application", "shop/orders", report.at]);
  assert.deepEqual(parse("#/shop/orders", report).choices, {});
  assert.equal(parse("", { application: null, at: null }).view, "fleet");
});

test("a question is in the address with every operator's name", () => {
  const parallelism = { "Source: orders": 2, "a=b&c": 3, "<b>": 1 };
  const place = { view: "what-if", application: "shop/orders", choices: { load: "2.00", parallelism } };
  assert.deepEqual(parse(format(place)), place);
});

test("an address that means nothing shows the fleet", () => {
  for (const hash of ["", "#", "#/", "#nothing", "#/%E0%A4%A"]) assert.equal(parse(hash).view, "fleet");
  assert.deepEqual(parse("#/?text=a&unknown=b").choices, { text: "a" });
});

test("a path of the API has no part of its own from a name", () => {
  assert.equal(resource("applications", "shop/..?x#", "/plan"), "v1/applications/shop/..%3Fx%23/plan");
});

test("parallelisms that are none are left out", () => {
  assert.deepEqual(parse("#/a/b/what-if?p=x=0&p=y=-1&p=z=1.5&p==3&p=ok=4&load=-2").choices.parallelism, { ok: 4 });
  assert.equal(loadOf("-2"), 1);
  assert.equal(loadOf("x"), 1);
  assert.equal(loadOf("1.50"), 1.5);
});

test("a time of the forecast is asked for, in the address and as a command", () => {
  const place = { view: "what-if", application: "shop/orders", choices: { load: "1.50", after: "1800", parallelism: {} } };
  assert.deepEqual(parse(format(place)), place);
  assert.equal(new URLSearchParams(query(1.5, {}, 1800)).get("at"), "in 1800s");
  assert.equal(new URLSearchParams(query(1.5, {})).get("at"), null);
  assert.equal(command("shop/orders", 1, {}, 1800), "weir what-if shop/orders --at 'in 1800s'");
  for (const [text, seconds] of [["1800", 1800], ["-1", 0], ["x", 0], [undefined, 0], ["1e9", 86_400]]) assert.equal(afterOf(text), seconds);
});

test("the forecast reaches as far as that of every source", () => {
  const path = (...afters) => ({ path: afters.map((after_seconds) => ({ after_seconds })) });
  assert.equal(reach({ sources: [1, 2], forecasts: [path(60, 3600), path(60, 1800)] }), 1080);
  assert.equal(reach({ sources: [1, 2], forecasts: [path(60)] }), 0);
  assert.equal(reach({ sources: [1], forecasts: [path(600)] }), 0);
  assert.equal(reach({ sources: [], forecasts: [] }), 0);
  assert.equal(reach(null), 0);
});

test("bounds are YAML that a policy takes, whatever operators are called", () => {
  const policy = { spec: { bounds: { max: 8, operators: { b: { max: 20 } } } } };
  assert.equal(bounds({ 'Source: "x"': 2, a: 9, b: 12 }, policy), `bounds:
  operators:
    "Source: \\"x\\"": {min: 2}
    "a": {min: 9, max: 9}
    "b": {min: 12}
`);
  assert.equal(bounds({ a: 3, b: 40 }, { spec: { target: { kubernetes: {} } } }), "bounds: {min: 40, max: 40}\n");
  assert.equal(bounds({}, policy), "");
});

test("the command asks what the page asked", () => {
  assert.equal(command("shop/orders", 2, { "sink: Writer": 3 }), "weir what-if shop/orders --load x2 -p 'sink: Writer=3'");
  assert.equal(command("shop/orders", 1, {}), "weir what-if shop/orders");
  assert.equal(new URLSearchParams(query(2, { "a&b": 3 })).get("parallelism"), "a&b=3");
});
