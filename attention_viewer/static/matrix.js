// What a heat map or a bipartite view shows: weights with their labels, and operations on them.

import { group } from "./tokens.js";

/**
 * Returns {rows, columns, values, causal}: labels, and weights row by row.
 *
 * Pieces of a word are joined by adding the weights that go to them, and by the mean of the weights
 * that they give. Rows add up to 1 again after tokens were hidden.
 */
export function matrixOf(snapshot, map, weights, options) {
  const rows = group(snapshot.sequences[map.rows], options);
  const columns = group(snapshot.sequences[map.columns], options);
  const width = columns.groups.length;
  const values = new Float32Array(rows.groups.length * width);
  rows.groups.forEach((members, r) => {
    let total = 0;
    columns.groups.forEach((parts, c) => {
      let sum = 0;
      for (const row of members)
        for (const part of parts) sum += weights[row * map.numColumns + part];
      values[r * width + c] = sum / members.length;
      total += sum / members.length;
    });
    if (options.hide && total > 0) for (let c = 0; c < width; c++) values[r * width + c] /= total;
  });
  const causal = map.causal;
  return { rows: rows.labels, columns: columns.labels, values, causal };
}

export const isEmpty = ({ rows, columns }) => !rows.length || !columns.length;

/** Returns a - b, or null if their tokens differ. */
export function difference(a, b) {
  const spell = (labels) => labels.map(({ pieces }) => pieces.join("\u0000")).join("\u0001");
  if (spell(a.rows) !== spell(b.rows) || spell(a.columns) !== spell(b.columns)) return null;
  return { ...a, values: a.values.map((value, i) => value - b.values[i]) };
}

/** Returns how much of its attention a head moved from b to a, 0 to 1, as a mean over rows. */
export function change(a, b, numRows) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += Math.abs(a[i] - b[i]);
  return sum / 2 / numRows;
}

/** Returns the index of the largest of `values`. */
export function argmax(values) {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  return best;
}
