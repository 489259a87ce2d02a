// The view "Compare": two runs or steps side by side, their difference, and what changed most.

import { changedHeads, drawChangedHeads } from "./changes.js";
import { count, html, select } from "./dom.js";
import { HeatMap } from "./heatmap.js";
import { difference, isEmpty } from "./matrix.js";
import { panel, remark, widthOf } from "./panel.js";

export class Compare {
  constructor(app) {
    this.app = app;
    this.controls = html("div", { class: "fields" });
    this.maps = [0, 1, 2].map(() => new HeatMap(app.onHover, app.onPin));
    const names = ["first", "second", "difference"];
    this.panels = this.maps.map(({ element }, i) => panel(names[i], element, { picture: true }));
    this.changed = panel("changed-heads");
    const panels = [...this.panels, this.changed].map(({ element }) => element);
    this.element = html("div", { class: "views compare" }, this.controls, ...panels);
  }

  async draw() {
    const { app } = this;
    const { state, store, snapshot } = app;
    const { run, steps } = await store.inRun(state.otherRun);
    const places = { first: steps[0].step, last: steps.at(-1).step, same: app.at.step };
    const at = store.at(places[state.otherStep] ?? (Number(state.otherStep) || 0), steps);
    this.#drawControls(run, steps);
    const other = await store.load(at, run);
    const name = (r, { step }) =>
      run === store.run ? `step ${count(step)}` : `${r}, step ${count(step)}`;
    const [name1, name2] = [name(store.run, app.at), name(run, at)];

    const map = other.maps[state.map];
    const hasHeads =
      map && state.heads.every(([layer, head]) => layer < map.layers && head < map.heads);
    const first = app.matrix(snapshot);
    const second = hasHeads ? app.matrix(other) : null;
    this.#drawMap(0, name1, app.title(), first, "Nothing is left to show.");
    this.#drawMap(1, name2, app.title(), second, "That run has no such heads.");
    this.#drawMap(
      2,
      "Difference",
      `red: more at ${name1}; blue: at ${name2}`,
      second && difference(first, second),
      "The tokens differ, as the model's own translation does from step to step: nothing to subtract.",
    );
    const changes = changedHeads(snapshot, other);
    this.changed.title.textContent = "Heads that changed most";
    this.changed.about.textContent =
      "share of their attention that went elsewhere; click to see one";
    this.changed.content.replaceChildren(
      changes.length
        ? drawChangedHeads(changes, state, (mapName, heads) => app.update({ map: mapName, heads }))
        : remark("No two heads have the same tokens."),
    );
  }

  highlight(place) {
    for (const map of this.maps) map.highlight(place);
  }

  #drawMap(i, title, about, matrix, message) {
    const box = this.panels[i];
    box.title.textContent = title;
    box.about.textContent = about;
    if (!matrix || isEmpty(matrix)) {
      this.maps[i].clear(remark(message));
      return;
    }
    this.maps[i].draw(matrix, {
      scale: this.app.state.scale,
      width: widthOf(box.content),
      height: window.innerHeight - 330,
      isDifference: i === 2,
    });
  }

  #drawControls(run, steps) {
    const { app } = this;
    const runs = app.store.runsWithTag();
    const { otherStep } = app.state;
    const key = JSON.stringify([runs, run, otherStep, steps.length]);
    if (key === this.drawnControls) return; // an open list must not close at the next step
    this.drawnControls = key;
    const choices = [
      ["first", "first step"],
      ["last", "last step"],
      ["same", "same step"],
      ...steps.map(({ step }) => [`${step}`, count(step)]),
    ];
    this.controls.replaceChildren(
      select(
        "Compare with",
        runs.map((r) => [r, r]),
        run,
        (otherRun) => app.update({ otherRun }),
      ),
      select("at", choices, otherStep, (step) => app.update({ otherStep: step })),
    );
  }
}
