// One selection over training: a strip of maps, and the translations in the order they came.

import { count, html } from "./dom.js";
import { paint } from "./overview.js";
import { visible } from "./tokens.js";

const MAX_MAPS = 14;

/** Small maps of the selected heads at steps spread over training. */
export class Filmstrip {
  constructor(onStep) {
    this.onStep = onStep;
    this.element = html("div", { class: "filmstrip" });
  }

  /** Draws; `load` gives the promise of the snapshot of a {step, time}. */
  async draw({ steps, step, load, mapName, heads, scale, width }) {
    const room = Math.max(3, Math.min(MAX_MAPS, Math.floor(width / 100)));
    const chosen = spread(steps, room);
    const size = Math.min(150, Math.floor(width / chosen.length) - 14);
    const nearest = chosen.reduce((best, s) =>
      Math.abs(s.step - step) < Math.abs(best.step - step) ? s : best,
    );
    const drawing = (this.drawing = {});
    const snapshots = await Promise.all(chosen.map((s) => load(s).catch(() => null)));
    if (this.drawing !== drawing) return; // a later one has begun
    const frames = chosen.map((s, i) => {
      const map = snapshots[i]?.maps[mapName];
      const canvas = html("canvas", {
        class: "enlarged",
        style: `width: ${size}px; height: ${size}px`,
      });
      if (map) paint(canvas, map, heads, scale);
      return html(
        "button",
        {
          class: s === nearest ? "frame-button on" : "frame-button",
          click: () => this.onStep(s.step),
        },
        canvas,
        html("span", { class: "caption" }, count(s.step)),
      );
    });
    this.element.replaceChildren(...frames);
  }
}

/** Returns `most` elements, the first and last among them, spread evenly. */
function spread(elements, most) {
  if (elements.length <= most) return elements;
  return Array.from(
    { length: most },
    (_, i) => elements[Math.round((i * (elements.length - 1)) / (most - 1))],
  );
}

/** The model's own translation: each one with the step at which it appeared. */
export class Translations {
  constructor(onStep) {
    this.onStep = onStep;
    this.element = html("div", { class: "translations" });
  }

  /** Draws what is known: `texts` maps steps to {translation}. */
  draw({ steps, step, texts, reference }) {
    const rows = [];
    let last;
    for (const { step: s } of steps) {
      const translation = texts.get(s);
      if (translation === undefined) continue;
      if (rows.length && translation === last) rows.at(-1).until = s;
      else rows.push({ from: s, until: s, translation });
      last = translation;
    }
    const known = steps.filter(({ step: s }) => texts.has(s)).length;
    const state =
      known < steps.length
        ? `${count(known)} of ${count(steps.length)} steps read`
        : `${rows.length === 1 ? "one translation" : `${count(rows.length)} changes`} in ${count(steps.length)} steps`;
    this.element.replaceChildren(
      html("div", { class: "dim" }, state),
      ...rows.map(({ from, until, translation }) =>
        html(
          "button",
          {
            class: step >= from && step <= until ? "row on" : "row",
            click: () => this.onStep(from),
          },
          html(
            "span",
            { class: "steps" },
            from === until ? count(from) : `${count(from)} – ${count(until)}`,
          ),
          html(
            "bdi",
            { class: translation === reference ? "text right" : "text" },
            visible(translation) || "(nothing)",
          ),
        ),
      ),
    );
    const shown = this.element.querySelector(".on");
    if (shown) this.element.scrollTop = shown.offsetTop - this.element.clientHeight / 2;
  }
}
