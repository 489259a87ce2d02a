// The view "Read": links, coverage and alignment error of the cross head that is best for them.

import { headColor } from "./color.js";
import { Curves } from "./curves.js";
import { html } from "./dom.js";
import { bestCrossHead, headName } from "./heads.js";
import { isEmpty, matrixOf } from "./matrix.js";
import { panel, remark, widthOf } from "./panel.js";
import { coverage, drawCoverage, drawLinks } from "./reading.js";
import { group } from "./tokens.js";

const NAMES = { cross: "Reference", translation: "Own translation" };
const OPTIONS = { words: true, hide: true };

export class Read {
  constructor(app) {
    this.app = app;
    this.links = panel("links", null, { picture: true });
    this.coverage = panel("coverage");
    this.curves = new Curves((step) => app.update({ step }), app.tooltip);
    this.errors = panel("alignment-error", this.curves.element);
    const panels = [this.links, this.coverage, this.errors].map(({ element }) => element);
    this.element = html("div", { class: "views read" }, ...panels);
  }

  draw() {
    const { app, links } = this;
    const { snapshot, store, index } = app;
    const names = Object.keys(NAMES).filter((name) => snapshot.maps[name]);
    if (!names.length) {
      links.content.replaceChildren(remark("There is no cross-attention here."));
      return;
    }
    const { head, reason } = bestCrossHead(snapshot.maps[names[0]], store.measures, index);
    const sides = names.map((name) => {
      const map = snapshot.maps[name];
      return { name: NAMES[name], matrix: matrixOf(snapshot, map, map.mean([head]), OPTIONS) };
    });
    links.title.textContent = "Where each target word looked most";
    links.about.textContent = `cross-attention, ${headName(head)} (${reason}); this is attention, not an alignment`;
    const width = widthOf(links.content);
    links.content.replaceChildren(
      ...sides.map(({ name, matrix }) => {
        const drawing = isEmpty(matrix)
          ? remark("(no word)")
          : drawLinks(matrix, width, headColor(head[1]));
        return html("figure", { class: "links" }, html("figcaption", {}, name), drawing);
      }),
    );
    this.coverage.title.textContent = "How much each source word was looked at";
    this.coverage.about.textContent =
      "the line is the mean; a word hardly looked at may be left out, one looked at much repeated";
    const { labels } = group(snapshot.sequences.source, OPTIONS);
    const bars = sides.map(({ name, matrix }) => ({ name, values: coverage(matrix) }));
    this.coverage.content.replaceChildren(drawCoverage(labels, bars));
    this.#drawErrors(head);
  }

  /** Draws the alignment error, where there are gold links. */
  #drawErrors(head) {
    const { app, errors } = this;
    const { store, snapshot } = app;
    errors.element.hidden = !store.measures.of("cross").includes("alignment_error");
    if (errors.element.hidden) return;
    errors.title.textContent = "Alignment error over training";
    errors.about.textContent =
      "of the largest weights, against the gold links: all cross heads, the best one in colour";
    this.curves.draw({
      names: ["alignment_error"],
      map: "cross",
      measures: store.measures,
      allHeads: snapshot.maps.cross.allHeads(),
      chosen: [head],
      step: app.at.step,
      width: widthOf(errors.content),
    });
  }
}
