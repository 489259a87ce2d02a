// Reading aids for cross-attention: the strongest links, and how much of the source was looked at.

import { FONT, html, svg, textWidth } from "./dom.js";
import { fitText, isolate, labelClass } from "./heatmap.js";
import { argmax } from "./matrix.js";

/** Draws a line from each target word to the source word with its largest weight. */
export function drawLinks(matrix, width, color) {
  const { rows, columns, values } = matrix;
  const size = 14;
  const lineHeight = 26;
  const gap = 84;
  const lay = (labels, y) => {
    let x = 2;
    return labels.map((label) => {
      const text = fitText(label.text, size, 150);
      const box = { x, y, width: textWidth(text, size) + 14, text, label };
      x += box.width;
      return box;
    });
  };
  const source = lay(columns, 0);
  const target = lay(rows, lineHeight + gap);
  const end = (boxes) => boxes.at(-1).x + boxes.at(-1).width;
  const total = Math.max(end(source), end(target), Math.min(width - 4, 300));
  for (const boxes of [source, target]) {
    const stretch = Math.min((total - end(boxes)) / boxes.length, 40);
    boxes.forEach((box, i) => (box.x += stretch * (i + 0.5)));
  }
  const words = ({ x, y, width: w, text, label }) =>
    svg(
      "text",
      {
        x: x + w / 2,
        y: y + lineHeight / 2,
        "text-anchor": "middle",
        "dominant-baseline": "central",
        class: labelClass(label),
      },
      isolate(text),
    );
  const links = target.map((to, r) => {
    const row = values.subarray(r * columns.length, (r + 1) * columns.length);
    const best = argmax(row);
    const from = source[best];
    return svg("line", {
      x1: from.x + from.width / 2,
      y1: lineHeight,
      x2: to.x + to.width / 2,
      y2: lineHeight + gap,
      stroke: color,
      "stroke-width": 2,
      "stroke-opacity": (0.25 + 0.75 * row[best]).toFixed(2),
    });
  });
  return svg(
    "svg",
    {
      width: total,
      height: 2 * lineHeight + gap,
      viewBox: `0 0 ${total} ${2 * lineHeight + gap}`,
      "font-family": FONT,
      "font-size": size,
    },
    ...links,
    ...source.map(words),
    ...target.map(words),
  );
}

/**
 * Returns how much attention each source word got, 1 being the mean.
 *
 * @param matrix Of a head, without ends of sentence and punctuation.
 */
export function coverage({ rows, columns, values }) {
  const sums = new Float32Array(columns.length);
  values.forEach((value, i) => (sums[i % columns.length] += value));
  return sums.map((sum) => (rows.length ? (sum * columns.length) / rows.length : 0));
}

const LITTLE = 0.3;
const MUCH = 2;

/**
 * Draws bars for each source word: in the reference, and in the model's translation.
 *
 * @param labels Source words.
 * @param sides [{name, values}], values as `coverage` gives them.
 */
export function drawCoverage(labels, sides) {
  const most = Math.max(MUCH, ...sides.flatMap(({ values }) => [...values]));
  const bar = (value, name) => {
    const kind = value < LITTLE ? "little" : value > MUCH ? "much" : "";
    const note = { little: "hardly looked at", much: "looked at much", "": "" }[kind];
    return html(
      "td",
      {},
      html(
        "div",
        { class: "bar-line", title: `${name}: ${value.toFixed(2)} of the mean` },
        html("span", {
          class: `bar ${kind}`,
          style: `width: ${Math.max(1, (100 * value) / most)}%`,
        }),
        html("span", { class: "mean", style: `left: ${100 / most}%` }),
        html("span", { class: "dim" }, note),
      ),
    );
  };
  return html(
    "table",
    { class: "coverage" },
    html("tr", {}, html("th", {}, "Source"), ...sides.map(({ name }) => html("th", {}, name))),
    ...labels.map((label, i) =>
      html(
        "tr",
        {},
        html("th", { class: label.isSpecial ? "dim" : "" }, html("bdi", {}, label.text)),
        ...sides.map(({ name, values }) => bar(values[i], name)),
      ),
    ),
  );
}
