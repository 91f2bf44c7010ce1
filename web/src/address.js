// The part of the address behind `#` names what is shown: a place in the page and its choices. Pure.

import { REPORT } from "./report.js";

const KNOWN = { fleet: ["text", "namespace", "engine", "state"], application: ["at", "plan", "zoom"], "what-if": ["load", "after"], compare: [] };

/** Read `#/shop/orders?at=…`. An address that names nothing is the fleet's, in a report of one application that one's. */
export function parse(hash, report = REPORT) {
  const [path, query = ""] = hash.replace(/^#/, "").split(/\?(.*)/s);
  const parts = path.split("/").filter(Boolean).map(decoded);
  const given = new URLSearchParams(query);
  const named = parts.length >= 2 ? `${parts[0]}/${parts[1]}` : null;
  const application = named ?? report?.application ?? null;
  const view = application === null ? "fleet" : parts[2] === "what-if" || parts[2] === "compare" ? parts[2] : "application";
  const choices = {};
  for (const name of KNOWN[view]) if (given.get(name)) choices[name] = given.get(name);
  if (named === null && application !== null && report.at) Object.assign(choices, around(report.at));
  if (view === "what-if") choices.parallelism = parallelism(given.getAll("p"));
  return { view, application, choices };
}

/** The choices that show a moment with half an hour before and after it. */
function around(at) {
  const middle = Date.parse(at) / 1000;
  return { at, zoom: [middle - 1800, middle + 1800].map((each) => each.toFixed(0)).join("~") };
}

export function format({ view, application, choices = {} }) {
  const query = new URLSearchParams();
  for (const name of KNOWN[view]) if (choices[name]) query.set(name, choices[name]);
  for (const [name, value] of Object.entries(choices.parallelism ?? {})) query.append("p", `${name}=${value}`);
  const [namespace, name] = (application ?? "/").split("/");
  const path = view === "fleet" ? "/" : `/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;
  const text = query.toString();
  return `#${path}${view === "what-if" || view === "compare" ? `/${view}` : ""}${text && `?${text}`}`;
}

/** The path of an application's resource in the API. */
export function resource(kind, application, rest = "") {
  const [namespace, name] = application.split("/");
  return `v1/${kind}/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}${rest}`;
}

function parallelism(texts) {
  const found = {};
  for (const text of texts) {
    const at = text.lastIndexOf("=");
    const count = Number(text.slice(at + 1));
    if (at > 0 && Number.isInteger(count) && count > 0) found[text.slice(0, at)] = count;
  }
  return found;
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
