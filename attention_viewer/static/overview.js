// All heads at a glance: a grid of small maps, sortable by what the heads do.

import { SCALES, step, weightColors } from "./color.js";
import { html, select } from "./dom.js";
import { MAPS, MEASURES, TYPES, headName, headType } from "./heads.js";
import { WEIGHTS } from "./snapshot.js";

const MAX_SIZE = 84; // pixels of a map
const BORDER = 6; // around it
const AXIS = 16; // for the layers' numbers
const ORDERS = [
  ["layers", "by layer"],
  ["high", "highest first"],
  ["low", "lowest first"],
];

export class Overview {
  constructor(app) {
    this.app = app;
    this.controls = html("div", { class: "fields" });
    this.sections = html("div");
    this.element = html("div", { class: "overview" }, this.controls, this.sections);
    this.cells = new Map(); // "map layer head" -> cell, kept from step to step
  }

  draw() {
    const { snapshot } = this.app;
    this.#drawControls();
    this.sections.replaceChildren(...Object.values(snapshot.maps).map((map) => this.#section(map)));
  }

  #drawControls() {
    const { state, store } = this.app;
    const { measures } = store;
    const key = `${state.measure} ${state.order} ${measures.names}`;
    if (this.drawnControls === key) return; // an open list must not close at the next step
    this.drawnControls = key;
    const choices = [["type", "what it does"], ...measures.names.map((name) => [name, MEASURES[name]?.[0] ?? name])];
    this.controls.replaceChildren(
      select("Heads by", choices, state.measure, (measure) => this.app.update({ measure })),
      select("order", ORDERS, state.order, (order) => this.app.update({ order })),
    );
  }

  #section(map) {
    const { state, store, index } = this.app;
    const { measures } = store;
    const isSorted = state.order !== "layers";
    const width = this.element.clientWidth - AXIS;
    const size = Math.max(26, Math.min(MAX_SIZE, Math.floor(width / (map.heads + 1)) - BORDER));
    const isMeasured = state.measure !== "type";
    const key = isMeasured ? state.measure : "entropy";
    const cells = map.allHeads().map((head) => {
      const values = measures.all(index, map.name, head);
      const cell = this.#cell(map, [head], `${head}`, size);
      const type = headType(values, map.name);
      const value = values[state.measure];
      const place = isSorted ? `${head[0] + 1}.${head[1] + 1} ` : "";
      const shown = isMeasured ? (value === null ? "–" : value.toFixed(2)) : type;
      cell.caption.textContent = place + shown;
      cell.describe = () => [
        headName(head),
        type && `mostly: ${TYPES[type]}`,
        ...measures.of(map.name).map((name) => `${MEASURES[name]?.[0] ?? name}: ${values[name]?.toFixed(2) ?? "–"}`),
      ];
      return { cell, head, value: values[key] ?? -1 };
    });
    if (isSorted) {
      cells.sort((a, b) => (state.order === "high" ? b.value - a.value : a.value - b.value));
      const list = cells.map(({ cell }) => cell.button);
      return this.#titled(map, html("div", { class: "sorted" }, ...list));
    }
    const grid = html("div", {
      class: "grid",
      style: `grid-template-columns: ${AXIS - 2}px repeat(${map.heads + 1}, ${size + 4}px)`,
    });
    grid.append(html("span"));
    for (let head = 1; head <= map.heads; head++) grid.append(html("span", { class: "axis" }, `${head}`));
    grid.append(html("span", { class: "axis" }, "mean"));
    for (let layer = 0; layer < map.layers; layer++) {
      grid.append(html("span", { class: "axis" }, `${layer + 1}`));
      for (const { cell, head } of cells) if (head[0] === layer) grid.append(cell.button);
      const ofLayer = map.allHeads().filter(([other]) => other === layer);
      const mean = this.#cell(map, ofLayer, `mean ${layer}`, size);
      mean.describe = () => [`layer ${layer + 1}`, "mean of its heads"];
      grid.append(mean.button);
    }
    return this.#titled(map, grid);
  }

  #select(map, heads, { shiftKey, ctrlKey, metaKey }) {
    const isAdded = (shiftKey || ctrlKey || metaKey) && map === this.app.state.map;
    if (isAdded && heads.length === 1) this.app.toggleHead(heads[0]);
    else this.app.update({ map, heads });
  }

  #titled(map, content) {
    const { long, about } = MAPS[map.name] ?? { long: map.name, about: "" };
    const isChosen = map.name === this.app.state.map;
    return html(
      "section",
      { class: isChosen ? "chosen" : "" },
      html("h3", { title: about }, long),
      content,
    );
  }

  /** Returns the cell of some heads, with its small map drawn. */
  #cell(map, heads, key, size) {
    const { state, tooltip } = this.app;
    const name = `${map.name} ${key}`;
    let cell = this.cells.get(name);
    if (!cell) {
      const canvas = html("canvas");
      const caption = html("span", { class: "caption" });
      cell = { canvas, caption };
      cell.button = html(
        "button",
        {
          class: "head",
          "data-head": name,
          click: (event) => this.#select(map.name, cell.heads, event),
          pointerenter: (event) => tooltip.show(event, cell.describe()),
          pointerleave: () => tooltip.hide(),
        },
        canvas,
        caption,
      );
      this.cells.set(name, cell);
    }
    cell.heads = heads;
    cell.button.setAttribute("aria-label", `${MAPS[map.name]?.long ?? map.name}, ${key}`);
    const chosen = new Set(state.heads.map(String));
    const isChosen = map.name === state.map && heads.every((head) => chosen.has(String(head)));
    cell.button.classList.toggle("on", isChosen && (heads.length === 1 || heads.length === chosen.size));
    const height = Math.max(size * 0.35, Math.min(size * 1.6, (size * map.numRows) / map.numColumns));
    cell.canvas.style.width = `${size}px`;
    // Sharp squares where they are larger than pixels; else a diagonal would lose its pixels.
    cell.canvas.classList.toggle("enlarged", map.numColumns <= size);
    cell.canvas.style.height = `${height}px`;
    paint(cell.canvas, map, heads, state.scale);
    return cell;
  }
}

/** Draws the mean of some heads, one pixel a weight. */
export function paint(canvas, map, heads, scale) {
  const { numRows, numColumns } = map;
  canvas.width = numColumns;
  canvas.height = numRows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(numColumns, numRows);
  const pixels = new Uint32Array(image.data.buffer);
  const colors = weightColors().map(([r, g, b]) => (255 << 24) | (b << 16) | (g << 8) | r);
  const values = heads.length === 1 ? map.codesOf(heads[0]) : map.mean(heads);
  const weightOf = heads.length === 1 ? (code) => WEIGHTS[code] : (value) => value;
  const { position } = SCALES[scale];
  for (let row = 0; row < numRows; row++) {
    const start = row * numColumns;
    let rowMax = 0;
    for (let i = start; i < start + numColumns; i++) rowMax = Math.max(rowMax, weightOf(values[i]));
    for (let i = start; i < start + numColumns; i++) {
      pixels[i] = colors[step(position(weightOf(values[i]), rowMax))];
    }
  }
  context.putImageData(image, 0, 0);
}
