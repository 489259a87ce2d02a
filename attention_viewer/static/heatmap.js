// A heat map with token labels; drawn as one path a colour, so that it is small as SVG too.

import { SCALES, css, differenceColors, step, weightColors } from "./color.js";
import { FONT, html, svg, textWidth } from "./dom.js";
import { isCjk, shorten } from "./tokens.js";

const MAX_CELL = 52;
const MIN_CELL = 11;
const MAX_LABEL = 150; // pixels

export class HeatMap {
  /**
   * @param onHover Called with {row, column} under the pointer (-1: none), the view, and the event.
   * @param onPin Called likewise when a cell or label is clicked.
   */
  constructor(onHover, onPin) {
    this.element = html("div", { class: "heatmap" });
    this.element.addEventListener("pointermove", (event) =>
      onHover(this.#find(event), this, event),
    );
    this.element.addEventListener("pointerleave", (event) =>
      onHover({ row: -1, column: -1 }, this, event),
    );
    this.element.addEventListener("click", (event) => onPin(this.#find(event), this, event));
  }

  /**
   * Draws a matrix.
   *
   * @param width Pixels to fill, if the cells then are neither too small nor too large.
   * @param isDifference Weights are from -1 to 1.
   */
  draw(matrix, { scale, width, height = Infinity, isDifference = false }) {
    this.matrix = matrix;
    const { rows, columns } = matrix;
    const guess = fit(rows.length, columns.length, width - MAX_LABEL, height - 60);
    const size = Math.max(9, Math.min(13, guess * 0.78));
    const rowTexts = rows.map(({ text }) => fitText(text, size, MAX_LABEL));
    this.left = Math.ceil(Math.max(30, ...rowTexts.map((t) => textWidth(t, size, "bold")))) + 10;
    const cell = fit(rows.length, columns.length, width - this.left - 40, height - 60);
    this.cell = cell;
    const labels = columnLabels(columns, size, cell);
    this.top = labels.height + 6;
    const right = labels.overhang;
    const total = {
      width: this.left + columns.length * cell + Math.max(right, 2),
      height: this.top + rows.length * cell + 2,
    };
    this.rowLabels = rowTexts.map((text, row) =>
      svg(
        "text",
        {
          x: this.left - 6,
          y: this.top + (row + 0.5) * cell,
          "text-anchor": "end",
          "dominant-baseline": "central",
          class: labelClass(rows[row]),
        },
        isolate(text),
      ),
    );
    this.columnLabels = labels.texts.map((text, column) =>
      svg(
        "text",
        {
          ...labels.place(this.left + (column + 0.5) * cell, this.top - 6),
          class: labelClass(columns[column]),
        },
        isolate(text),
      ),
    );
    this.rowMark = svg("rect", { class: "mark", visibility: "hidden" });
    this.columnMark = svg("rect", { class: "mark", visibility: "hidden" });
    this.svg = svg(
      "svg",
      {
        width: total.width,
        height: total.height,
        viewBox: `0 0 ${total.width} ${total.height}`,
        "font-family": FONT,
        "font-size": size,
        role: "img",
      },
      svg("g", { "shape-rendering": "crispEdges" }, ...this.#cells(scale, isDifference)),
      svg("rect", {
        x: this.left - 0.5,
        y: this.top - 0.5,
        width: columns.length * cell + 1,
        height: rows.length * cell + 1,
        class: "frame",
      }),
      ...this.rowLabels,
      ...this.columnLabels,
      this.rowMark,
      this.columnMark,
    );
    this.element.replaceChildren(this.svg);
  }

  /** Shows something else. */
  clear(element) {
    this.svg = null;
    this.element.replaceChildren(element);
  }

  /** Marks a row and a column; -1 marks none. */
  highlight({ row, column }) {
    if (!this.svg) return;
    const { left, top, cell } = this;
    const { rows, columns } = this.matrix;
    place(
      this.rowMark,
      row >= 0 && row < rows.length,
      left,
      top + row * cell,
      columns.length * cell,
      cell,
    );
    place(
      this.columnMark,
      column >= 0 && column < columns.length,
      left + column * cell,
      top,
      cell,
      rows.length * cell,
    );
    this.rowLabels.forEach((label, i) => label.classList.toggle("on", i === row));
    this.columnLabels.forEach((label, i) => label.classList.toggle("on", i === column));
  }

  #cells(scale, isDifference) {
    const { rows, columns, values, causal } = this.matrix;
    const colors = isDifference ? differenceColors() : weightColors();
    const paths = colors.map(() => "");
    const { left, top, cell } = this;
    const most = isDifference ? Math.max(0.05, ...values.map(Math.abs)) : 1;
    for (let row = 0; row < rows.length; row++) {
      const start = row * columns.length;
      const rowValues = values.subarray(start, start + columns.length);
      const rowMax = Math.max(...rowValues);
      rowValues.forEach((value, column) => {
        if (causal && column > row && value === 0) return;
        const position = isDifference
          ? (value / most + 1) / 2
          : SCALES[scale].position(value, rowMax);
        const x = round(left + column * cell);
        const y = round(top + row * cell);
        const w = round(left + (column + 1) * cell - x);
        const h = round(top + (row + 1) * cell - y);
        paths[step(position)] += `M${x} ${y}h${w}v${h}h${-w}z`;
      });
    }
    return paths.map((d, i) => (d ? svg("path", { d, fill: css(colors[i]) }) : null));
  }

  #find(event) {
    if (!this.svg) return { row: -1, column: -1 };
    const box = this.svg.getBoundingClientRect();
    const x = event.clientX - box.left - this.left;
    const y = event.clientY - box.top - this.top;
    const at = (position, length) =>
      position >= 0 && position < length * this.cell ? Math.floor(position / this.cell) : -1;
    return { row: at(y, this.matrix.rows.length), column: at(x, this.matrix.columns.length) };
  }
}

function fit(rows, columns, width, height) {
  const cell = Math.min(width / columns, Math.max(height / rows, 18), MAX_CELL);
  return Math.max(MIN_CELL, Math.floor(cell));
}

function place(mark, isShown, x, y, width, height) {
  mark.setAttribute("visibility", isShown ? "visible" : "hidden");
  if (isShown)
    for (const [name, value] of Object.entries({ x, y, width, height }))
      mark.setAttribute(name, value);
}

const round = (value) => Math.round(value * 10) / 10;

/** Keeps the direction of a token's text from changing what stands beside it. */
export const isolate = (text) => `\u2068${text}\u2069`;

export const labelClass = ({ isSpecial, isContinuation }) =>
  ["label", isSpecial && "special", isContinuation && "continuation"].filter(Boolean).join(" ");

/** Returns as much of a text as fits. */
export function fitText(text, size, width) {
  let length = 40;
  let short = shorten(text, length);
  while (length > 2 && textWidth(short, size) > width) short = shorten(text, (length -= 2));
  return short;
}

/** Chooses how column labels stand: level, as a column of characters (Chinese), or slanted. */
function columnLabels(columns, size, cell) {
  const texts = columns.map(({ text }) => fitText(text, size, MAX_LABEL));
  const widest = Math.max(...texts.map((text) => textWidth(text, size, "bold")));
  if (widest <= cell - 3) {
    const placing = (x, y) => ({ x, y, "text-anchor": "middle" });
    return { texts, height: size * 1.3, overhang: 0, place: placing };
  }
  const isStackable = texts.every((text, i) => {
    const short = Array.from(text).length <= 6;
    return (isCjk(text) && short) || columns[i].isSpecial || text.length <= 2;
  });
  if (isStackable && cell >= size) {
    const longest = Math.max(
      ...texts.map((text, i) =>
        isCjk(text) ? Array.from(text).length * size : textWidth(text, size),
      ),
    );
    const placing = (x, y) => ({ x, y, "text-anchor": "end", style: "writing-mode: vertical-rl" });
    return { texts, height: longest * 1.08 + 2, overhang: 0, place: placing };
  }
  const angle = cell >= 20 ? 50 : cell >= 15 ? 65 : 90;
  const radians = (angle * Math.PI) / 180;
  const placing = (x, y) => ({
    transform: `translate(${x} ${y}) rotate(${-angle})`,
    "text-anchor": "start",
    "dominant-baseline": angle === 90 ? "central" : "auto",
  });
  const ends = texts.map(
    (text, i) => textWidth(text, size, "bold") * Math.cos(radians) + (i + 0.5) * cell,
  );
  return {
    texts,
    height: widest * Math.sin(radians) + size * 0.8,
    overhang: Math.max(0, Math.max(...ends) - texts.length * cell + 10),
    place: placing,
  };
}
