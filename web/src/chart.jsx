// Plots over one time axis: scrubbed and zoomed together.

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { clock } from "./words.js";

const hour = (time) => clock(time, time).slice(0, 5);

/** A colour of the style sheet, for a canvas. */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

const HEIGHT = 132;

/**
 * One plot. `series` are `{label, values, colour, dash, steps, fill, points}`, `lines` values with a line across, `marks` times with
 * a line down, `at` the chosen time. `hover` gets the time under the pointer or null, `pick` a time that was clicked,
 * `zoom` the span `[from, to]` that was drawn with the pointer, null for all.
 */
export function Chart({ label, times, series, bands = [], lines = [], marks = [], at, span, hover, pick, zoom, unit, timeUnit, height = HEIGHT }) {
  const place = useRef(null);
  const plot = useRef(null);
  const now = useRef(null);
  now.current = { lines, marks, at, hover, pick, zoom, unit, timeUnit, span };
  const latest = useRef(null);
  latest.current = { times, series };
  const shape = series.map((each) => `${each.label}${each.colour}${each.dash ?? ""}`).join();
  useEffect(() => {
    const element = place.current;
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const make = () => {
      plot.current?.destroy();
      plot.current = new uPlot(options(element, series, bands, now, height), data(latest.current.times, latest.current.series), element);
    };
    make();
    scheme.addEventListener("change", make);
    const resized = new ResizeObserver(() =>
      plot.current?.setSize({ width: Math.max(160, element.clientWidth), height }),
    );
    resized.observe(element);
    return () => {
      scheme.removeEventListener("change", make);
      resized.disconnect();
      plot.current.destroy();
      plot.current = null;
    };
  }, [shape, height]);
  useEffect(() => plot.current?.setData(data(times, series)), [times, series]);
  useEffect(() => plot.current?.redraw(false), [at, marks, lines]);
  return (
    <figure class="chart">
      <figcaption>{label}</figcaption>
      <div ref={place} aria-hidden="true" />
    </figure>
  );
}

const data = (times, series) => [times, ...series.map((each) => each.values)];

function options(place, series, bands, now, height) {
  const axis = { stroke: colour("soft"), grid: { stroke: colour("grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  return {
    width: Math.max(160, place.clientWidth),
    height,
    legend: { show: false },
    cursor: {
      sync: now.current.hover ? { key: "weir", setSeries: false } : undefined,
      drag: { x: true, y: false, setScale: false },
      points: { size: 6 },
      y: false,
      bind: { dblclick: () => () => now.current.zoom?.(null) },
    },
    scales: {
      x: { time: true, range: (u, min, max) => now.current.span ?? [min ?? 0, max ?? 1] },
      y: {
        range: (u, min, max) => {
          const top = Math.max(max ?? 0, ...now.current.lines, 1e-9);
          return [0, top * 1.12];
        },
      },
    },
    axes: [
      { ...axis, space: 70, size: 24, values: (u, found) => found.map(now.current.timeUnit ?? hour) },
      { ...axis, size: 52, space: 32, values: (u, found) => found.map((each) => now.current.unit(each)) },
    ],
    series: [
      {},
      ...series.map((each) => ({
        label: each.label,
        stroke: colour(each.colour),
        width: each.width ?? 1.6,
        dash: each.dash,
        fill: each.fill ? `${colour(each.colour)}22` : undefined,
        paths: each.steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
        points: { show: false },
        spanGaps: each.spanGaps ?? false,
      })),
    ],
    bands: bands.map((each) => ({ ...each, fill: `${colour("forecast")}2b` })),
    hooks: {
      setSelect: [
        (u) => {
          const { left, width } = u.select;
          if (width > 8) now.current.zoom?.([u.posToVal(left, "x"), u.posToVal(left + width, "x")]);
          u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        },
      ],
      ready: [
        (u) => {
          let from = null;
          const time = (event) => u.posToVal(event.clientX - u.over.getBoundingClientRect().left, "x");
          // Of the pointer alone: new data under a resting pointer must not change the moment, whose data it may be.
          u.over.addEventListener("pointermove", (event) => now.current.hover?.(time(event)));
          u.over.addEventListener("pointerleave", () => now.current.hover?.(null));
          u.over.addEventListener("pointerdown", (event) => (from = event.clientX));
          u.over.addEventListener("click", (event) => {
            if (from !== null && Math.abs(event.clientX - from) < 6) {
              now.current.pick?.(time(event));
            }
          });
        },
      ],
      draw: [(u) => drawn(u, now.current)],
    },
  };
}

/** Draw objectives, actions and the chosen time over the series. */
function drawn(u, { lines, marks, at }) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  const across = (value, stroke, dash) => {
    const y = u.valToPos(value, "y", true);
    line(ctx, bbox.left, y, bbox.left + bbox.width, y, stroke, dash);
  };
  const down = (time, stroke, dash, width) => {
    const x = u.valToPos(time, "x", true);
    line(ctx, x, bbox.top, x, bbox.top + bbox.height, stroke, dash, width);
  };
  for (const value of lines) across(value, colour("late"), [6, 4]);
  for (const each of marks) down(each, colour("action"), [2, 3]);
  if (at != null) down(at, colour("accent"), [], 2);
  ctx.restore();
}

function line(ctx, x, y, toX, toY, stroke, dash, width = 1) {
  ctx.beginPath();
  ctx.strokeStyle = stroke;
  ctx.lineWidth = width * devicePixelRatio;
  ctx.setLineDash(dash.map((each) => each * devicePixelRatio));
  ctx.moveTo(x, y);
  ctx.lineTo(toX, toY);
  ctx.stroke();
}
