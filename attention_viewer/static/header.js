// The head of the page: run and sentence, the step, the texts, notes.

import { checkbox, count, html, select } from "./dom.js";
import { KEYS } from "./keys.js";
import { shorten, visible } from "./tokens.js";

export class Header {
  constructor(app) {
    this.app = app;
    this.choices = html("div", { class: "fields" });
    this.play = html(
      "button",
      { class: "play", title: "Play (space)", "aria-label": "Play", click: () => app.play() },
      "▶",
    );
    this.slider = html("input", {
      type: "range",
      min: 0,
      max: 0,
      "aria-label": "Step",
      input: () => app.goTo(Number(this.slider.value)),
    });
    this.step = html("output", { class: "step" });
    const follow = checkbox(
      "follow",
      app.state.follow,
      (value) => app.follow(value),
      "Go to each new step when it is there",
    );
    this.stepBar = html("div", { class: "steps-bar" }, this.play, this.slider, this.step, follow);
    const link = html(
      "button",
      { title: "Copy a link that restores this view", click: () => this.#copyLink(link) },
      "Copy link",
    );
    const keys = KEYS.flatMap(([key, what]) => [html("dt", {}, key), html("dd", {}, what)]);
    const help = html(
      "details",
      { class: "help" },
      html("summary", { title: "Keys" }, "?"),
      html("dl", {}, ...keys),
    );
    this.sentences = html("div", { class: "sentences" });
    this.notes = html("details", { class: "notes", hidden: true });
    const tools = html("div", { class: "fields" }, link, help);
    this.element = html(
      "header",
      {},
      html("div", { class: "toolbar" }, this.choices, this.stepBar, tools),
      this.sentences,
      this.notes,
    );
  }

  draw() {
    const { store, at, snapshot } = this.app;
    const { steps } = store;
    this.slider.max = steps.length - 1;
    this.slider.value = steps.indexOf(at);
    this.step.textContent = `step ${count(at.step)}`;
    this.step.title = new Date(1000 * at.time).toLocaleString();
    this.stepBar.hidden = steps.length < 2;
    const texts = snapshot?.texts ?? {};
    const lines = ["Source", "Reference", "Translation"].filter(
      (name) => name.toLowerCase() in texts,
    );
    this.sentences.replaceChildren(
      ...lines.flatMap((name) => {
        const text = visible(texts[name.toLowerCase()]) || "(nothing)";
        return [html("span", { class: "dim" }, name), html("bdi", { "data-text": name }, text)];
      }),
    );
    this.#drawChoices();
    this.drawNotes();
  }

  drawNotes() {
    const { outage, problem, store } = this.app;
    const notes = [outage, problem, ...store.notes, ...store.seriesNotes].filter(Boolean);
    const summary = notes.length === 1 ? notes[0] : `${notes.length} notes`;
    this.notes.hidden = !notes.length;
    this.notes.replaceChildren(
      html("summary", {}, summary),
      ...(notes.length > 1 ? notes.map((note) => html("div", {}, note)) : []),
    );
  }

  drawPlaying(isPlaying) {
    this.play.textContent = isPlaying ? "❚❚" : "▶";
  }

  #drawChoices() {
    const { app } = this;
    const { run, tag, runs } = app.store;
    const key = JSON.stringify([
      run,
      tag,
      Object.entries(runs).map(([name, tags]) => [name, Object.keys(tags)]),
    ]);
    if (key === this.drawnChoices) return; // an open list must not close
    this.drawnChoices = key;
    const names = Object.keys(runs).map((name) => [name, name]);
    const sentences = Object.entries(runs[run]).map(([name, { source }]) => [
      name,
      `${name}: ${shorten(visible(source), 36)}`,
    ]);
    this.choices.replaceChildren(
      select("Run", names, run, (chosen) => app.choose({ run: chosen })),
      select("Sentence", sentences, tag, (chosen) => app.choose({ tag: chosen })),
    );
  }

  async #copyLink(button) {
    try {
      await navigator.clipboard.writeText(this.app.link());
      button.textContent = "Copied";
    } catch {
      button.textContent = "See the address bar"; // a frame may not write to the clipboard
    }
    setTimeout(() => (button.textContent = "Copy link"), 1500);
  }
}
