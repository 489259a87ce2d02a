// Source on one side, target on the other, a line for each weight; heads by colour.

import { headColor } from "./color.js";
import { FONT, html, svg, textWidth } from "./dom.js";
import { fitText, isolate, labelClass } from "./heatmap.js";

const BUCKETS = 12; // of opacity: lines of one head and bucket are one path
const MAX_LABEL = 140;

export class Bipartite {
  constructor(onHover, onPin) {
    this.onHover = onHover;
    this.onPin = onPin;
    this.element = html("div", { class: "bipartite" });
  }

  /**
   * Draws the matrices of some heads, which have the same tokens.
   *
   * @param heads [{matrix, head}], one for each head.
   * @param threshold Weights below it are left out.
   * @param isHorizontal Whether the sentences lie on top of each other instead of side by side.
   */
  draw(heads, { threshold, isHorizontal, width, height }) {
    this.heads = heads;
    this.matrix = heads[0].matrix;
    this.threshold = threshold;
    const { rows, columns } = this.matrix;
    const sides = isHorizontal
      ? lyingSides(columns, rows, width)
      : standingSides(columns, rows, width, height);
    this.sides = sides;
    this.lines = svg("g", { fill: "none" });
    this.boxes = {};
    const sideOf = (name, labels) => {
      const boxes = labels.map((label, i) => this.#box(name, label, i));
      this.boxes[name] = boxes;
      return boxes.map(({ group }) => group);
    };
    this.svg = svg(
      "svg",
      {
        width: sides.width,
        height: sides.height,
        viewBox: `0 0 ${sides.width} ${sides.height}`,
        "font-family": FONT,
        "font-size": sides.fontSize,
        role: "img",
      },
      this.lines,
      ...sideOf("column", columns),
      ...sideOf("row", rows),
    );
    this.element.replaceChildren(this.svg);
    this.highlight({ row: -1, column: -1 });
  }

  /** Shows something else. */
  clear(element) {
    this.svg = null;
    this.element.replaceChildren(element);
  }

  /** Shows the lines of one row or column alone; of all, where both are -1. */
  highlight({ row, column }) {
    if (!this.svg) return;
    const { rows, columns } = this.matrix;
    if (row >= rows.length) row = -1;
    if (column >= columns.length) column = -1;
    if (row >= 0) column = -1; // a cell isolates its row
    const paths = this.heads.flatMap(({ matrix, head }) => {
      const buckets = Array(BUCKETS).fill("");
      for (let r = 0; r < rows.length; r++) {
        if (row >= 0 && r !== row) continue;
        for (let c = 0; c < columns.length; c++) {
          if (column >= 0 && c !== column) continue;
          const value = matrix.values[r * columns.length + c];
          if (value < this.threshold) continue;
          buckets[Math.min(BUCKETS - 1, Math.floor(value * BUCKETS))] += this.sides.line(c, r);
        }
      }
      const isAlone = row >= 0 || column >= 0;
      return buckets.map((d, i) =>
        d
          ? svg("path", {
              d,
              stroke: headColor(head[1]),
              "stroke-opacity": Math.min(1, (i + 1) / BUCKETS + (isAlone ? 0.15 : 0.03)).toFixed(2),
              "stroke-width": (0.8 + (2.2 * i) / BUCKETS).toFixed(2),
            })
          : null,
      );
    });
    this.lines.replaceChildren(...paths.filter(Boolean));
    this.#shade("row", row, column >= 0 ? (r) => this.#mean(r, column) : null);
    this.#shade("column", column, row >= 0 ? (c) => this.#mean(row, c) : null);
  }

  #mean(row, column) {
    const width = this.matrix.columns.length;
    const sum = this.heads.reduce(
      (total, { matrix }) => total + matrix.values[row * width + column],
      0,
    );
    return sum / this.heads.length;
  }

  #shade(name, chosen, weightOf) {
    this.boxes[name].forEach(({ box, text }, i) => {
      box.setAttribute("fill-opacity", weightOf ? Math.sqrt(weightOf(i)) * 0.6 : 0);
      box.classList.toggle("chosen", i === chosen);
      text.classList.toggle("on", i === chosen);
    });
  }

  #box(name, label, index) {
    const { x, y, width, height, text } = this.sides[name][index];
    const anchor = this.sides.anchor[name];
    const textX = { start: x + 5, end: x + width - 5, middle: x + width / 2 }[anchor];
    const box = svg("rect", { x, y, width, height, rx: 3, class: "token" });
    const textNode = svg(
      "text",
      {
        x: textX,
        y: y + height / 2,
        "text-anchor": anchor,
        "dominant-baseline": "central",
        class: labelClass(label),
      },
      isolate(text),
    );
    const place = { row: -1, column: -1, [name]: index };
    const nowhere = { row: -1, column: -1 };
    const group = svg(
      "g",
      {
        class: "token-box",
        pointerenter: (event) => this.onHover(place, this, event),
        pointermove: (event) => this.onHover(place, this, event),
        pointerleave: (event) => this.onHover(nowhere, this, event),
        click: (event) => this.onPin(place, this, event),
      },
      box,
      textNode,
    );
    return { group, box, text: textNode };
  }
}

/** Source left, target right. */
function standingSides(columns, rows, width, height) {
  const most = Math.max(columns.length, rows.length);
  const pitch = Math.max(14, Math.min(26, Math.floor((height - 8) / most)));
  const fontSize = Math.max(10, Math.min(13, pitch - 4));
  const boxesOf = (labels) => {
    const texts = labels.map(({ text }) => fitText(text, fontSize, MAX_LABEL));
    const widest =
      Math.ceil(Math.max(...texts.map((text) => textWidth(text, fontSize, "bold")))) + 12;
    const top = 4 + ((most - labels.length) * pitch) / 2;
    return { texts, widest, top };
  };
  const left = boxesOf(columns);
  const right = boxesOf(rows);
  const total = Math.max(left.widest + right.widest + 120, Math.min(width, 640));
  const from = left.widest + 2;
  const to = total - right.widest - 2;
  const toBoxes = ({ texts, widest, top }, x) =>
    texts.map((text, i) => ({ x, y: top + i * pitch, width: widest, height: pitch - 1, text }));
  const bend = (to - from) * 0.45;
  return {
    width: total,
    height: most * pitch + 8,
    fontSize,
    anchor: { column: "end", row: "start" },
    column: toBoxes(left, 0),
    row: toBoxes(right, total - right.widest),
    line: (c, r) => {
      const y1 = left.top + (c + 0.5) * pitch;
      const y2 = right.top + (r + 0.5) * pitch;
      return `M${from} ${y1}C${from + bend} ${y1} ${to - bend} ${y2} ${to} ${y2}`;
    },
  };
}

/** Source above, target below: for Chinese, whose words are narrow. */
function lyingSides(columns, rows, width) {
  const fontSize = 13;
  const boxHeight = 24;
  const gap = 170;
  const lay = (labels, y) => {
    let x = 0;
    return labels.map((label) => {
      const text = fitText(label.text, fontSize, MAX_LABEL);
      const box = {
        x,
        y,
        width: Math.ceil(textWidth(text, fontSize, "bold")) + 10,
        height: boxHeight,
        text,
      };
      x += box.width + 3;
      return box;
    });
  };
  const column = lay(columns, 2);
  const row = lay(rows, 2 + boxHeight + gap);
  const end = (boxes) => boxes.at(-1).x + boxes.at(-1).width;
  const total = Math.max(end(column), end(row), Math.min(width, 320));
  for (const boxes of [column, row]) {
    const stretch = Math.min(14, (total - end(boxes)) / boxes.length);
    const start = (total - end(boxes) - stretch * (boxes.length - 1)) / 2;
    boxes.forEach((box, i) => (box.x += start + i * stretch));
  }
  const [from, to] = [2 + boxHeight + 1, 2 + boxHeight + gap - 1];
  const middle = (box) => Math.round((box.x + box.width / 2) * 10) / 10;
  return {
    width: total + 2,
    height: 2 * boxHeight + gap + 4,
    fontSize,
    anchor: { column: "middle", row: "middle" },
    column,
    row,
    line: (c, r) =>
      `M${middle(column[c])} ${from}C${middle(column[c])} ${from + gap * 0.45} ${middle(row[r])} ${to - gap * 0.45} ${middle(row[r])} ${to}`,
  };
}
