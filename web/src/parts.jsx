// Small parts that several views use.

import { useState } from "preact/hooks";
import { file } from "./api.js";
import { LEVELS } from "./trouble.js";
import { plain } from "./words.js";

/** A text from outside: set as text, in its own direction. */
export const Text = ({ children }) => <bdi>{plain(children)}</bdi>;

/** The state of an application: a sign and a word, so that colour says nothing alone. */
export function Level({ level }) {
  const { name, sign } = LEVELS[level];
  return (
    <span class={`level ${level}`}>
      <span aria-hidden="true">{sign}</span> {name}
    </span>
  );
}

export function Copy({ text, children, label }) {
  const [said, say] = useState(null);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      say("Copied");
    } catch {
      say("Not allowed: select and copy it");
    }
    setTimeout(() => say(null), 2000);
  };
  return (
    <button type="button" class="quiet" onClick={copy} aria-label={label}>
      {said ?? children}
      <span class="only-read" role="status">
        {said}
      </span>
    </button>
  );
}

/** A button that reads a file from the API and gives it to the viewer. */
export function Save({ path, name, children }) {
  const [said, say] = useState(null);
  const save = async () => {
    say("Reading …");
    try {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([await file(path)], { type: "text/html" }));
      link.download = name;
      link.click();
      URL.revokeObjectURL(link.href);
      say("Saved");
      setTimeout(() => say(null), 2000);
    } catch (error) {
      say(`Not saved: ${error.message}`);
    }
  };
  return (
    <button type="button" class="quiet" onClick={save}>
      {said ?? children}
      <span class="only-read" role="status">
        {said}
      </span>
    </button>
  );
}

/** A line of values without axes, for a row. Unknown values leave a gap. */
export function Sparkline({ values, bound, label }) {
  const known = values.filter((each) => each != null);
  if (known.length < 2) return <span class="spark" role="img" aria-label={`${label}: too little is known`} />;
  const width = 120;
  const height = 28;
  const top = Math.max(...known, bound ?? 0) * 1.08 || 1;
  const x = (i) => (i / (values.length - 1)) * width;
  const y = (value) => height - 1 - (value / top) * (height - 2);
  let path = "";
  let isOpen = false;
  values.forEach((value, i) => {
    if (value != null) path += `${isOpen ? "L" : "M"}${x(i).toFixed(1)} ${y(value).toFixed(1)}`;
    isOpen = value != null;
  });
  return (
    <svg class="spark" viewBox={`0 0 ${width} ${height}`} preserveAspectRatio="none" role="img" aria-label={label}>
      {bound != null && <line class="bound" x1="0" x2={width} y1={y(bound)} y2={y(bound)} />}
      <path d={path} />
    </svg>
  );
}

export function Problem({ error, children }) {
  return (
    <p class="problem" role="alert">
      {children} <Text>{error.message}</Text>
    </p>
  );
}
