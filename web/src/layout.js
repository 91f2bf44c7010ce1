// A graph of operators from left to right: the column of an operator is its longest way from a source. Pure.

/** Return `{columns, edges}`: names by column, and the edges whose ends exist. A cycle's operators keep a column, too. */
export function layered(operators, edges) {
  const names = operators.map((each) => each.name ?? each.operator);
  const known = new Set(names);
  const kept = edges.filter((each) => known.has(each.source) && known.has(each.target) && each.source !== each.target);
  const level = new Map(names.map((name) => [name, 0]));
  // As many rounds as operators: more would change nothing without a cycle, and never end with one.
  for (let round = 0; round < names.length; round += 1) {
    let changed = false;
    for (const { source, target } of kept) {
      const wanted = Math.min(level.get(source) + 1, names.length - 1);
      if (level.get(target) < wanted) {
        level.set(target, wanted);
        changed = true;
      }
    }
    if (!changed) break;
  }
  const used = [...new Set(level.values())].sort((a, b) => a - b);
  const columns = used.map((each) => names.filter((name) => level.get(name) === each));
  // Each column in the order of its predecessors' rows, so that fewer edges cross.
  const row = new Map();
  for (const column of columns) {
    const middle = (name) => {
      const rows = kept.filter((each) => each.target === name && row.has(each.source)).map((each) => row.get(each.source));
      return rows.length === 0 ? 0 : rows.reduce((sum, each) => sum + each, 0) / rows.length;
    };
    column.sort((a, b) => middle(a) - middle(b));
    column.forEach((name, i) => row.set(name, i));
  }
  return { columns, edges: kept };
}
