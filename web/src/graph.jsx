// The graph of operators at one moment, from left to right.

import { useMemo } from "preact/hooks";
import { capacityOf, hotSubtask } from "./capacity.js";
import { layered } from "./layout.js";
import { Text } from "./parts.jsx";
import { rate, share } from "./words.js";

const BOX = { width: 148, height: 140, gapX: 24, gapY: 16 };

export function Graph({ analysis }) {
  const { columns, edges } = useMemo(
    () => layered(analysis.topology?.operators ?? analysis.operators, analysis.topology?.edges ?? []),
    [analysis],
  );
  const tallest = Math.max(1, ...columns.map((each) => each.length));
  const size = { width: columns.length * (BOX.width + BOX.gapX) - BOX.gapX, height: tallest * (BOX.height + BOX.gapY) - BOX.gapY };
  const place = new Map();
  columns.forEach((column, i) => {
    const free = size.height - (column.length * (BOX.height + BOX.gapY) - BOX.gapY);
    column.forEach((name, j) =>
      place.set(name, { x: i * (BOX.width + BOX.gapX), y: free / 2 + j * (BOX.height + BOX.gapY) }),
    );
  });
  const known = new Map(analysis.operators.map((each) => [each.operator, each]));
  return (
    <div class="graph" tabindex={0} role="group" aria-label="Graph of operators">
      <div class="sheet" style={{ width: `${size.width}px`, height: `${size.height}px` }}>
        <svg width={size.width} height={size.height} aria-hidden="true">
          {edges.map(({ source, target }) => {
            const from = place.get(source);
            const to = place.get(target);
            const x = from.x + BOX.width;
            const y = from.y + BOX.height / 2;
            const toY = to.y + BOX.height / 2;
            const middle = (x + to.x) / 2;
            return (
              <path key={`${source}\n${target}`} d={`M${x} ${y}C${middle} ${y} ${middle} ${toY} ${to.x - 6} ${toY}m-6 -4l6 4l-6 4`} />
            );
          })}
        </svg>
        <ul>
          {[...place].map(([name, { x, y }]) => (
            <li key={name} style={{ left: `${x}px`, top: `${y}px`, width: `${BOX.width}px`, height: `${BOX.height}px` }}>
              <Operator name={name} found={known.get(name)} isBottleneck={analysis.bottleneck === name} />
            </li>
          ))}
        </ul>
      </div>
    </div>
  );
}

function Operator({ name, found, isBottleneck }) {
  const used = found?.utilization.value;
  const { text, title } = capacityOf(found);
  const hot = hotSubtask(found);
  return (
    <div class={isBottleneck ? "operator bottleneck" : "operator"}>
      <p class="title">
        <b title={name}>
          <Text>{name}</Text>
        </b>
        <span class="count">×{found?.parallelism ?? "?"}</span>
      </p>
      <p>
        {rate(found?.input_rate.value)} <small>in</small>
      </p>
      <p>
        <small title={title}>can {text}</small>
      </p>
      <meter min="0" max="1" value={used ?? 0} aria-label={`utilization of ${name}`} class={used > 0.9 ? "full" : undefined}>
        {share(used)}
      </meter>
      <p class="foot">
        <span>{used == null ? "use unknown" : isBottleneck ? share(used) : `${share(used)} used`}</span>
        {isBottleneck && <strong>bottleneck</strong>}
      </p>
      {hot && <p class="hot">{hot}</p>}
    </div>
  );
}
