// The view "Over time": the selected heads at many steps, curves of all heads, translations.

import { Curves } from "./curves.js";
import { html } from "./dom.js";
import { MAPS } from "./heads.js";
import { panel, widthOf } from "./panel.js";
import { Filmstrip, Translations } from "./timeline.js";

export class Time {
  constructor(app) {
    this.app = app;
    const onStep = (step) => app.update({ step });
    this.filmstrip = new Filmstrip(onStep);
    this.curves = new Curves(onStep, app.tooltip);
    this.translations = new Translations(onStep);
    this.strip = panel("filmstrip", this.filmstrip.element);
    this.charts = panel("curves", this.curves.element);
    this.texts = panel("translations", this.translations.element);
    const panels = [this.strip, this.charts, this.texts].map(({ element }) => element);
    this.element = html("div", { class: "views time" }, ...panels);
  }

  async draw() {
    const { app, strip, charts, texts } = this;
    const { state, store, snapshot } = app;
    strip.title.textContent = app.title();
    charts.title.textContent = `${MAPS[state.map]?.long ?? state.map}: all heads over training`;
    texts.title.textContent = "Translation of this sentence over training";
    const other = await store.inRun(state.otherRun).catch(() => null);
    const isOther = other && other.run !== store.run;
    charts.about.textContent = isOther
      ? `dashed: ${other.run}`
      : "selected heads in colour; click to go to a step; choose a second run under Compare";
    this.curves.draw({
      names: store.measures.of(state.map),
      map: state.map,
      measures: store.measures,
      other: isOther ? other.measures : null,
      allHeads: snapshot.maps[state.map].allHeads(),
      chosen: state.heads,
      step: app.at.step,
      width: widthOf(charts.content),
    });
    this.drawTranslations();
    await this.filmstrip.draw({
      steps: store.steps,
      step: app.at.step,
      load: (at) => store.load(at),
      mapName: state.map,
      heads: state.heads,
      scale: state.scale,
      width: widthOf(strip.content),
    });
  }

  /** Draws the translations that are known by now. */
  drawTranslations() {
    const { store, at, snapshot } = this.app;
    this.translations.draw({
      steps: store.steps,
      step: at.step,
      texts: store.texts,
      reference: snapshot.texts.reference,
    });
  }
}
