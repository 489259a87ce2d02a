// The view "Explore": heat map and bipartite view of the selected heads.

import { Bipartite } from "./bipartite.js";
import { SCALES, css, headColor, weightColors } from "./color.js";
import { checkbox, html } from "./dom.js";
import { MAPS, headName } from "./heads.js";
import { HeatMap } from "./heatmap.js";
import { isEmpty } from "./matrix.js";
import { panel, remark, widthOf } from "./panel.js";

const MAX_HEADS = 16; // drawn in the bipartite view
const LONG = 36; // tokens, from which on the heat map has the whole width

export class Explore {
  constructor(app) {
    this.app = app;
    this.heatMap = new HeatMap(app.onHover, app.onPin);
    this.bipartite = new Bipartite(app.onHover, app.onPin);
    this.legend = html("div", { class: "legend" });
    this.heads = html("div", { class: "fields" });
    this.left = panel("heat-map", this.heatMap.element, { tools: [this.legend], picture: true });
    this.right = panel("bipartite", this.bipartite.element, {
      tools: [this.heads, this.#fields()],
      picture: true,
    });
    this.element = html("div", { class: "views explore" }, this.left.element, this.right.element);
  }

  draw() {
    const { app, left, right } = this;
    const { state, snapshot } = app;
    left.title.textContent = app.title();
    left.about.textContent = MAPS[state.map]?.about ?? "";
    right.title.textContent = "From source to target";
    if (snapshot.maps[state.map].rows === snapshot.maps[state.map].columns) {
      right.title.textContent = "From the tokens looked at to those that look";
    }
    drawLegend(this.legend, state.scale);
    this.#drawHeads();
    const matrix = app.matrix(snapshot);
    const height = window.innerHeight - 300;
    if (isEmpty(matrix)) {
      this.heatMap.clear(remark("Nothing is left to show."));
      this.bipartite.clear(remark("Nothing is left to show."));
      return;
    }
    this.element.classList.toggle("long", matrix.columns.length > LONG);
    this.heatMap.draw(matrix, { scale: state.scale, width: widthOf(left.content), height });
    const heads = state.heads.slice(0, MAX_HEADS);
    this.bipartite.draw(
      heads.map((head) => ({ head, matrix: app.matrix(snapshot, [head]) })),
      {
        threshold: state.threshold,
        isHorizontal: state.horizontal,
        width: widthOf(right.content),
        height,
      },
    );
  }

  highlight(place) {
    this.heatMap.highlight(place);
    this.bipartite.highlight(place);
  }

  #fields() {
    const { app } = this;
    const number = html("span", { class: "number" }, app.state.threshold.toFixed(2));
    const slider = html("input", {
      type: "range",
      min: 0,
      max: 0.5,
      step: 0.01,
      value: app.state.threshold,
      "aria-label": "Hide lines below",
      input: () => {
        number.textContent = Number(slider.value).toFixed(2);
        app.update({ threshold: Number(slider.value) });
      },
    });
    return html(
      "div",
      { class: "fields" },
      html("label", { class: "field" }, "hide below", slider, number),
      checkbox(
        "horizontal",
        app.state.horizontal,
        (horizontal) => app.update({ horizontal }),
        "Sentences above each other, as suits Chinese",
      ),
    );
  }

  /** Draws the buttons that switch the heads of the selected layer on and off. */
  #drawHeads() {
    const { app } = this;
    const { state, snapshot } = app;
    const map = snapshot.maps[state.map];
    const [layer] = state.heads[0];
    const chosen = new Set(state.heads.map(String));
    const ofLayer = map.allHeads().filter(([other]) => other === layer);
    const toggles = ofLayer.map((head) => {
      const isOn = chosen.has(String(head));
      return html(
        "button",
        {
          class: isOn ? "toggle on" : "toggle",
          style: `--color: ${headColor(head[1])}`,
          "aria-pressed": `${isOn}`,
          title: headName(head),
          click: () => app.toggleHead(head),
        },
        `${head[1] + 1}`,
      );
    });
    this.heads.replaceChildren(
      html("span", { class: "dim" }, `heads of layer ${layer + 1}`),
      ...toggles,
      html("button", { class: "toggle", click: () => app.update({ heads: ofLayer }) }, "all"),
    );
  }
}

function drawLegend(element, scale) {
  if (scale === "row") {
    element.replaceChildren(
      html("span", { class: "dim" }, "full colour: the largest weight of its row"),
    );
    return;
  }
  const stops = weightColors().map(css).join(", ");
  const marks = [0, 0.05, 0.2, 0.5, 1].map((value) =>
    html("span", { style: `left: ${100 * SCALES[scale].position(value)}%` }, `${value}`),
  );
  const ramp = html("div", { style: `background: linear-gradient(to right, ${stops})` });
  element.replaceChildren(html("div", { class: "ramp" }, ramp, ...marks));
}
