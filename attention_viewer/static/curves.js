// How the measures of heads change over training: a small chart for each measure.

import { headColor } from "./color.js";
import { FONT, count, html, svg } from "./dom.js";
import { MEASURES, headName } from "./heads.js";

const HEIGHT = 150;
const LEFT = 30;
const BOTTOM = 20;
const TOP = 8;

export class Curves {
  /**
   * @param onStep Called with the step of a click.
   */
  constructor(onStep, tooltip) {
    this.onStep = onStep;
    this.tooltip = tooltip;
    this.element = html("div", { class: "charts" });
  }

  /**
   * Draws a chart for each of some measures.
   *
   * @param measures Of the probe; `other`: of the run to compare with, or null.
   * @param allHeads Heads to draw thinly; `chosen`: those in colour.
   */
  draw({ names, map, measures, other, allHeads, chosen, step, width }) {
    const columns = Math.max(1, Math.min(names.length, Math.floor(width / 300)));
    const chartWidth = Math.floor(width / columns) - 14;
    const charts = names.map((name) => {
      const [title, about] = MEASURES[name] ?? [name, ""];
      const chart = this.#chart({
        name,
        map,
        measures,
        other,
        allHeads,
        chosen,
        step,
        width: chartWidth,
      });
      return html(
        "figure",
        { class: "chart", "data-title": title, style: `width: ${chartWidth}px` },
        html("figcaption", {}, html("b", {}, title), html("span", { class: "dim" }, ` ${about}`)),
        chart,
      );
    });
    this.element.replaceChildren(...charts);
  }

  #chart({ name, map, measures, other, allHeads, chosen, step, width }) {
    const steps = measures.steps;
    const first = Math.min(steps[0], other?.steps[0] ?? Infinity);
    const last = Math.max(steps.at(-1), other?.steps.at(-1) ?? -Infinity, first + 1);
    const x = (s) => LEFT + ((s - first) / (last - first)) * (width - LEFT - 12);
    const y = (value) => TOP + (1 - value) * (HEIGHT - TOP - BOTTOM);
    const path = (of, head) => {
      let d = "";
      of.steps.forEach((s, i) => {
        const value = of.at(i, name, map, head);
        if (value !== null) d += `${d ? "L" : "M"}${x(s).toFixed(1)} ${y(value).toFixed(1)}`;
      });
      // A single point would draw nothing.
      return d && !d.includes("L") ? `${d}h0.01` : d;
    };
    const isChosen = new Set(chosen.map(String));
    const thin = allHeads.filter((head) => !isChosen.has(String(head)));
    const line = (d, attributes) =>
      svg("path", {
        d,
        fill: "none",
        "stroke-linejoin": "round",
        "stroke-linecap": "round",
        ...attributes,
      });
    const marker = svg("line", {
      x1: x(step),
      x2: x(step),
      y1: TOP,
      y2: HEIGHT - BOTTOM,
      class: "now",
    });
    const colored = chosen.length > 8 ? chosen.slice(0, 8) : chosen;
    const chart = svg(
      "svg",
      {
        width,
        height: HEIGHT,
        viewBox: `0 0 ${width} ${HEIGHT}`,
        "font-family": FONT,
        "font-size": 10,
      },
      ...[0, 0.5, 1].flatMap((value) => [
        svg("line", { x1: LEFT, x2: width - 12, y1: y(value), y2: y(value), class: "gridline" }),
        svg(
          "text",
          { x: LEFT - 5, y: y(value) + 3, "text-anchor": "end", class: "dim" },
          `${value}`,
        ),
      ]),
      ...ticks(first, last, width).map((s) =>
        svg("text", { x: x(s), y: HEIGHT - 6, "text-anchor": "middle", class: "dim" }, count(s)),
      ),
      line(thin.map((head) => path(measures, head)).join(""), { class: "thin" }),
      ...(other
        ? colored.map((head) =>
            line(path(other, head), {
              stroke: headColor(head[1]),
              "stroke-width": 1.5,
              "stroke-dasharray": "4 3",
            }),
          )
        : []),
      ...colored.map((head) =>
        line(path(measures, head), { stroke: headColor(head[1]), "stroke-width": 2 }),
      ),
      marker,
    );
    const stepAt = (event) => {
      const at = event.clientX - chart.getBoundingClientRect().left;
      return steps.reduce((best, s) => (Math.abs(x(s) - at) < Math.abs(x(best) - at) ? s : best));
    };
    chart.addEventListener("click", (event) => this.onStep(stepAt(event)));
    chart.addEventListener("pointermove", (event) => {
      const s = stepAt(event);
      const index = measures.indexOf(s);
      const value =
        1 - (event.clientY - chart.getBoundingClientRect().top - TOP) / (HEIGHT - TOP - BOTTOM);
      const distance = (head) => Math.abs((measures.at(index, name, map, head) ?? 9) - value);
      const nearest = allHeads.reduce((best, head) =>
        distance(head) < distance(best) ? head : best,
      );
      const shown = [
        ...new Map([...colored, nearest].map((head) => [String(head), head])).values(),
      ];
      this.tooltip.show(event, [
        `step ${count(s)}`,
        ...shown.map(
          (head) => `${headName(head)}: ${measures.at(index, name, map, head)?.toFixed(3) ?? "–"}`,
        ),
      ]);
    });
    chart.addEventListener("pointerleave", () => this.tooltip.hide());
    return chart;
  }
}

/** Returns a few round numbers from first to last. */
function ticks(first, last, width) {
  const rough = (last - first) / Math.max(2, Math.floor(width / 90));
  const power = 10 ** Math.floor(Math.log10(rough));
  const interval = Math.max(1, [1, 2, 5, 10].find((factor) => factor * power >= rough) * power);
  const found = [];
  for (let s = Math.ceil(first / interval) * interval; s <= last; s += interval) found.push(s);
  return found;
}
