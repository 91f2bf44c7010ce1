// A what-if question as a query of the API and as a command. Pure.

import { quoted } from "./words.js";

/** The factor of a load as the address has it, 1 where it has none. */
export function loadOf(text) {
  const found = Number(text);
  return Number.isFinite(found) && found > 0 ? Math.min(1000, found) : 1;
}

const pairs = (parallelism) => Object.entries(parallelism).map(([name, value]) => `${name}=${value}`);

export function query(load, parallelism) {
  const found = new URLSearchParams({ load: `x${load}` });
  for (const each of pairs(parallelism)) found.append("parallelism", each);
  return found.toString();
}

export function command(application, load, parallelism) {
  const words = ["weir", "what-if", application];
  if (load !== 1) words.push("--load", `x${load}`);
  for (const each of pairs(parallelism)) words.push("-p", each);
  return words.map(quoted).join(" ");
}
