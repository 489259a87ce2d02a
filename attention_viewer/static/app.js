// Holds what is shown, and draws it anew when it changes.

import { Bipartite } from "./bipartite.js";
import { SCALES, css, headColor, weightColors } from "./color.js";
import { changedHeads, drawChangedHeads } from "./compare.js";
import { Curves } from "./curves.js";
import { checkbox, count, html, select, weight } from "./dom.js";
import { MAPS, Measures, bestCrossHead, headName, headType, selectionName } from "./heads.js";
import { HeatMap } from "./heatmap.js";
import { followTheme, linkTo, onReload, readLocation, writeLocation } from "./location.js";
import { difference, matrixOf } from "./matrix.js";
import { Overview } from "./overview.js";
import { save } from "./picture.js";
import { coverage, drawCoverage, drawLinks } from "./reading.js";
import { Snapshots } from "./source.js";
import { fromStrings, toStrings } from "./state.js";
import { Filmstrip, Translations } from "./timeline.js";
import { group, shorten, visible } from "./tokens.js";
import { Tooltip } from "./tooltip.js";

const TABS = { explore: "Explore", time: "Over time", compare: "Compare", read: "Read" };
const POLL_SECONDS = 10;
const FRAME_MILLISECONDS = 150;
const NOWHERE = { row: -1, column: -1 };
const KEYS = [
  ["← →", "step back and forth"],
  ["Home End", "first and last step"],
  ["space", "play"],
  ["↑ ↓", "previous and next head"],
  ["m", "next kind of attention"],
  ["w", "pieces or words"],
  ["h", "hide ends and punctuation"],
  ["1 – 4", "views"],
];

export class App {
  constructor(source) {
    this.source = source;
    this.snapshots = new Snapshots(source);
    this.state = fromStrings(readLocation());
    this.texts = new Map(); // step -> translation, of the probe
    this.pin = NOWHERE;
    this.problem = "";
  }

  /** Loads what there is, draws it, and looks for news from then on. */
  async start() {
    followTheme(() => this.drawn && this.draw());
    this.#layOut();
    await this.reload();
    new ResizeObserver(() => this.drawn && this.draw()).observe(this.main);
    document.addEventListener("keydown", (event) => this.#onKey(event));
    onReload(() => this.reload());
    setInterval(() => this.#isVisible() && this.reload(), 1000 * POLL_SECONDS);
  }

  /** Changes what is shown. */
  update(changes) {
    Object.assign(this.state, changes);
    writeLocation(toStrings(this.state));
    return this.draw();
  }

  /** Looks for new runs, probes and steps. */
  async reload() {
    let found;
    try {
      found = await this.source.probes();
    } catch (error) {
      return this.#say(`The server does not answer: ${error.message}`);
    }
    this.runs = found.runs;
    this.notes = found.notes;
    const { state } = this;
    if (!Object.keys(this.runs).length) {
      return this.#say("No attention was logged yet. Train with attention_every_steps above 0.");
    }
    if (!this.runs[state.run]) state.run = Object.keys(this.runs)[0];
    if (!this.runs[state.run][state.tag]) state.tag = Object.keys(this.runs[state.run])[0];
    const { last_step: lastStep, last_time: lastTime } = this.#probe();
    const version = JSON.stringify([state.run, state.tag, lastStep, lastTime]);
    if (version !== this.seriesVersion) {
      try {
        await this.#loadSeries();
      } catch (error) {
        return this.#say(error.message);
      }
      this.seriesVersion = version;
      await this.draw();
    }
    this.#drawChoices();
  }

  /** Draws; while one drawing is under way, the newest state waits for it and no other does. */
  draw() {
    this.isStale = true;
    this.drawing ??= this.#drawUntilFresh().finally(() => (this.drawing = null));
    return this.drawing;
  }

  // ------------------------------------------------------------ data

  #probe() {
    return this.runs[this.state.run][this.state.tag];
  }

  async #loadSeries() {
    const { state } = this;
    const { run, tag } = state;
    const series = await this.source.series(run, tag);
    if (run !== state.run || tag !== state.tag) return;
    const key = JSON.stringify([run, tag]);
    if (key !== this.textsOf) this.texts.clear();
    this.textsOf = key;
    const wasNewest = state.step < 0 || state.step === this.steps?.at(-1)?.step;
    this.steps = series.steps;
    this.seriesNotes = series.notes ?? [];
    this.measures = new Measures(this.#probe(), series.measures);
    const maps = this.#probe().maps;
    if (!maps.some(({ name }) => name === state.map)) {
      state.map = (maps.find(({ name }) => name === "cross") ?? maps.at(-1)).name;
      state.heads = [];
    }
    const { layers, heads } = maps.find(({ name }) => name === state.map);
    state.heads = state.heads.filter(([layer, head]) => layer < layers && head < heads);
    if (state.follow && wasNewest) state.step = this.steps.at(-1).step;
  }

  /** Returns the {step, time} that is nearest to a step; the newest for -1. */
  #at(step, steps = this.steps) {
    if (step < 0) return steps.at(-1);
    return steps.reduce((best, s) => (Math.abs(s.step - step) < Math.abs(best.step - step) ? s : best));
  }

  async #load(at, run = this.state.run) {
    const { tag } = this.state;
    const snapshot = await this.snapshots.get(run, tag, at);
    if (run === this.state.run && tag === this.state.tag) this.texts.set(at.step, snapshot.texts.translation ?? "");
    return snapshot;
  }

  /** Loads the other steps, the nearest first, until memory is nearly full. */
  async #prefetch() {
    const { run, tag } = this.state;
    const version = this.seriesVersion;
    const token = (this.prefetching = {});
    const current = () => this.steps.findIndex(({ step }) => step === this.at.step);
    const waiting = new Set(this.steps.keys());
    const work = async () => {
      while (waiting.size && this.prefetching === token && this.seriesVersion === version) {
        const here = current();
        const next = [...waiting].reduce((best, i) => (Math.abs(i - here) < Math.abs(best - here) ? i : best));
        waiting.delete(next);
        const at = this.steps[next];
        const needsText = this.state.tab === "time" && !this.texts.has(at.step);
        if (this.snapshots.has(run, tag, at) && this.texts.has(at.step)) continue;
        if (this.snapshots.isNearlyFull && !needsText) continue;
        await this.#load(at, run).catch(() => this.texts.set(at.step, ""));
        if (this.state.tab === "time" && waiting.size % 20 === 0) this.#drawTranslations();
      }
    };
    await Promise.all([work(), work(), work()]);
  }

  /** Loads the run and step to compare with: {run, at, snapshot, measures}. */
  async #loadOther() {
    const { state } = this;
    const candidates = this.#runsWithTag();
    const run = candidates.includes(state.otherRun) ? state.otherRun : state.run;
    let { steps, measures } = this;
    if (run !== state.run) {
      const version = JSON.stringify([run, state.tag, this.runs[run][state.tag].last_time]);
      if (this.other?.version !== version) {
        const series = await this.source.series(run, state.tag);
        const otherMeasures = new Measures(this.runs[run][state.tag], series.measures);
        this.other = { version, steps: series.steps, measures: otherMeasures };
      }
      ({ steps, measures } = this.other);
    }
    const wanted = { first: steps[0].step, last: steps.at(-1).step, same: this.at.step };
    const at = this.#at(wanted[state.otherStep] ?? Number(state.otherStep), steps);
    return { run, steps, measures, at, snapshot: await this.#load(at, run) };
  }

  #runsWithTag() {
    return Object.keys(this.runs).filter((run) => this.runs[run][this.state.tag]);
  }

  // ------------------------------------------------------------ drawing

  async #drawUntilFresh() {
    while (this.isStale) {
      this.isStale = false;
      await this.#drawOnce();
    }
  }

  async #drawOnce() {
    const { state } = this;
    if (!this.steps?.length) return;
    this.at = this.#at(state.step);
    let snapshot;
    try {
      snapshot = await this.#load(this.at);
      this.problem = "";
    } catch (error) {
      this.problem = error.message;
      this.#drawHeader();
      return;
    }
    this.snapshot = snapshot;
    this.index = this.measures.indexOf(this.at.step);
    if (!snapshot.maps[state.map]) return this.#say(`Step ${this.at.step} has no map ${state.map}`);
    if (!state.heads.length) {
      const map = snapshot.maps[state.map];
      state.heads = [bestCrossHead(map, this.measures, this.index).head];
    }
    this.#drawHeader();
    this.message.hidden = true;
    this.body.hidden = false;
    this.overview.draw({ state, snapshot, measures: this.measures, index: this.index });
    for (const [name, tab] of Object.entries(this.tabs)) {
      tab.panel.hidden = name !== state.tab;
      tab.button.setAttribute("aria-selected", name === state.tab);
    }
    const draw = { explore: this.#drawExplore, time: this.#drawTime, compare: this.#drawCompare, read: this.#drawRead };
    await draw[state.tab in draw ? state.tab : "explore"].call(this);
    if (!this.drawn) {
      this.drawn = true;
      document.body.dataset.ready = "true";
    }
    if (this.prefetchedVersion !== `${this.seriesVersion} ${state.tab}`) {
      this.prefetchedVersion = `${this.seriesVersion} ${state.tab}`;
      this.#prefetch().then(() => this.state.tab === "time" && this.#drawTranslations());
    }
  }

  get #options() {
    return { words: this.state.words, hide: this.state.hide };
  }

  /** Returns the matrix of the selected heads of a snapshot. */
  #matrix(snapshot, heads = this.state.heads) {
    const map = snapshot.maps[this.state.map];
    return matrixOf(snapshot, map, map.mean(heads), this.#options);
  }

  #title(snapshot = this.snapshot) {
    const map = snapshot.maps[this.state.map];
    return `${MAPS[map.name]?.long ?? map.name}: ${selectionName(this.state.heads, map)}`;
  }

  #drawExplore() {
    const { state, snapshot } = this;
    const matrix = this.#matrix(snapshot);
    const [left, right] = this.tabs.explore.panels;
    left.title.textContent = this.#title();
    left.about.textContent = MAPS[state.map]?.about ?? "";
    this.#drawTools();
    const height = window.innerHeight - 300;
    if (isEmpty(matrix)) {
      for (const view of [this.heatMap, this.bipartite]) view.element.replaceChildren("Nothing is left to show.");
      return;
    }
    this.heatMap.draw(matrix, { scale: state.scale, width: innerWidth(left.content), height });
    drawLegend(this.legend, state.scale);
    const heads = state.heads.slice(0, 16).map((head) => ({ head, matrix: this.#matrix(snapshot, [head]) }));
    this.bipartite.draw(heads, {
      threshold: state.threshold,
      isHorizontal: state.horizontal,
      width: innerWidth(right.content),
      height,
    });
    this.#highlight(this.pin);
  }

  #drawTools() {
    const { state, snapshot } = this;
    const map = snapshot.maps[state.map];
    const layer = state.heads[0][0];
    const chosen = new Set(state.heads.map(String));
    const buttons = Array.from({ length: map.heads }, (_, head) => {
      const isOn = chosen.has(String([layer, head]));
      return html(
        "button",
        {
          class: isOn ? "toggle on" : "toggle",
          style: `--color: ${headColor(head)}`,
          "aria-pressed": `${isOn}`,
          title: headName([layer, head]),
          click: () => this.#toggleHead([layer, head]),
        },
        `${head + 1}`,
      );
    });
    const all = map.allHeads().filter(([other]) => other === layer);
    buttons.push(html("button", { class: "toggle all", click: () => this.update({ heads: all }) }, "all"));
    this.headToggles.replaceChildren(html("span", { class: "dim" }, `heads of layer ${layer + 1}`), ...buttons);
  }

  async #drawTime() {
    const { state, snapshot } = this;
    const [strip, charts, texts] = this.tabs.time.panels;
    const map = snapshot.maps[state.map];
    strip.title.textContent = this.#title();
    charts.title.textContent = `${MAPS[state.map]?.long ?? state.map}: all heads over training`;
    texts.title.textContent = "Translation of this sentence over training";
    const otherRun = this.#runsWithTag().includes(state.otherRun) && state.otherRun !== state.run;
    const other = otherRun ? await this.#loadOther().catch(() => null) : null;
    charts.about.textContent = other ? `dashed: ${other.run}` : "click: go to that step";
    this.curves.draw({
      names: this.measures.of(state.map),
      map: state.map,
      measures: this.measures,
      other: other?.measures,
      allHeads: map.allHeads(),
      chosen: state.heads,
      step: this.at.step,
      width: innerWidth(charts.content),
    });
    this.#drawTranslations();
    await this.filmstrip.draw({
      steps: this.steps,
      step: this.at.step,
      load: (at) => this.#load(at),
      mapName: state.map,
      heads: state.heads,
      scale: state.scale,
      width: innerWidth(strip.content),
    });
  }

  #drawTranslations() {
    const { steps, at, texts, snapshot } = this;
    this.translations.draw({ steps, step: at.step, texts, reference: snapshot.texts.reference });
  }

  async #drawCompare() {
    const { state, snapshot } = this;
    const panels = this.tabs.compare.panels;
    let other;
    try {
      other = await this.#loadOther();
    } catch (error) {
      panels[0].about.textContent = error.message;
      return;
    }
    this.#drawCompareControls(other);
    const nameOf = (run, step) => (run === state.run && other.run === state.run ? `step ${count(step)}` : `${run}, step ${count(step)}`);
    const names = [nameOf(state.run, this.at.step), nameOf(other.run, other.at.step)];
    const map = other.snapshot.maps[state.map];
    const canShow = map && state.heads.every(([layer, head]) => layer < map.layers && head < map.heads);
    const a = this.#matrix(snapshot);
    const b = canShow ? this.#matrix(other.snapshot) : null;
    panels[0].title.textContent = `${this.#title()}, ${names[0]}`;
    panels[1].title.textContent = names[1];
    panels[2].title.textContent = "Difference";
    panels[2].about.textContent = `red: more weight at ${names[0]}; blue: more at ${names[1]}`;
    const scale = state.scale;
    const height = window.innerHeight - 330;
    const [mapA, mapB, mapDifference] = this.compared;
    const draw = (view, panel, matrix, message, isDifference = false) => {
      if (!matrix || isEmpty(matrix)) view.element.replaceChildren(html("p", { class: "dim" }, message));
      else view.draw(matrix, { scale, width: innerWidth(panel.content), height, isDifference });
    };
    draw(mapA, panels[0], a, "Nothing is left to show.");
    draw(mapB, panels[1], b, "That run has no such heads.");
    const differing = "Their tokens differ, so there is no difference to draw: it is another translation.";
    draw(mapDifference, panels[2], b && difference(a, b), differing, true);
    const changed = changedHeads(snapshot, other.snapshot);
    panels[3].title.textContent = "Heads that changed most";
    panels[3].about.textContent = "share of their attention that went elsewhere";
    panels[3].content.replaceChildren(
      changed.length
        ? drawChangedHeads(changed, MAPS, state, (name, heads) => this.update({ map: name, heads }))
        : html("p", { class: "dim" }, "Nothing can be compared."),
    );
  }

  #drawCompareControls(other) {
    const { state } = this;
    const steps = [["first", "first step"], ["last", "last step"], ["same", "same step"], ...other.steps.map(({ step }) => [`${step}`, count(step)])];
    const key = JSON.stringify([this.#runsWithTag(), other.run, state.otherStep, other.steps.length]);
    if (key === this.drawnCompareControls) return;
    this.drawnCompareControls = key;
    this.compareControls.replaceChildren(
      select("Compare with", this.#runsWithTag().map((run) => [run, run]), other.run, (otherRun) => this.update({ otherRun })),
      select("at", steps, state.otherStep, (otherStep) => this.update({ otherStep })),
    );
  }

  #drawRead() {
    const { snapshot, measures, index, state } = this;
    const [links, covered, error] = this.tabs.read.panels;
    const options = { words: true, hide: true };
    const crossMaps = ["cross", "translation"].filter((name) => snapshot.maps[name]);
    if (!crossMaps.length) {
      links.content.replaceChildren(html("p", { class: "dim" }, "There is no cross-attention here."));
      return;
    }
    const map = snapshot.maps[crossMaps[0]];
    const { head, reason } = bestCrossHead(map, measures, index);
    links.title.textContent = "Where each target word looked most";
    links.about.textContent = `${headName(head)} (${reason}); attention, not alignment`;
    const names = { cross: "Reference", translation: "Own translation" };
    const matrices = crossMaps.map((name) => {
      const shown = snapshot.maps[name];
      return { name: names[name], matrix: matrixOf(snapshot, shown, shown.mean([head]), options) };
    });
    links.content.replaceChildren(
      ...matrices.map(({ name, matrix }) =>
        html(
          "figure",
          { class: "links" },
          html("figcaption", {}, name),
          isEmpty(matrix) ? html("p", { class: "dim" }, "(no word)") : drawLinks(matrix, innerWidth(links.content), headColor(head[1])),
        ),
      ),
    );
    covered.title.textContent = "How much each source word was looked at";
    covered.about.textContent = "the line is the mean; a word hardly looked at may be left out, one looked at much repeated";
    const labels = group(snapshot.sequences.source, options).labels;
    covered.content.replaceChildren(
      drawCoverage(labels, matrices.map(({ name, matrix }) => ({ name, values: coverage(matrix) }))),
    );
    const hasGold = measures.at(index, "alignment_error", "cross", [0, 0]) !== null;
    error.element.hidden = !hasGold;
    if (hasGold) {
      error.title.textContent = "Alignment error over training";
      error.about.textContent = "of the largest weights of all cross heads, against the gold links";
      this.errorCurves.draw({
        names: ["alignment_error"],
        map: "cross",
        measures,
        allHeads: map.allHeads(),
        chosen: [head],
        step: this.at.step,
        width: Math.min(700, innerWidth(error.content)),
      });
    }
    void state;
  }

  #drawHeader() {
    const { at, steps } = this;
    const position = steps.indexOf(at);
    this.slider.max = steps.length - 1;
    this.slider.value = position;
    this.slider.disabled = steps.length < 2;
    this.stepText.textContent = `step ${count(at.step)}`;
    this.stepText.title = new Date(1000 * at.time).toLocaleString();
    this.stepBar.hidden = steps.length < 2;
    const texts = this.snapshot?.texts ?? {};
    const lines = [["Source", texts.source], ["Reference", texts.reference], ["Translation", texts.translation]];
    this.sentences.replaceChildren(
      ...lines.flatMap(([name, text]) =>
        text === undefined
          ? []
          : [html("span", { class: "dim" }, name), html("bdi", { "data-text": name }, visible(text) || "(nothing)")],
      ),
    );
    const notes = [this.problem, ...(this.notes ?? []), ...(this.seriesNotes ?? [])].filter(Boolean);
    this.noteBox.hidden = !notes.length;
    this.noteBox.replaceChildren(
      html("summary", {}, notes.length === 1 ? notes[0] : `${notes.length} notes`),
      ...(notes.length > 1 ? notes.map((note) => html("div", {}, note)) : []),
    );
  }

  /** Draws the choice of run and sentence. */
  #drawChoices() {
    const { state } = this;
    const key = JSON.stringify([state.run, state.tag, this.runs]);
    if (key === this.drawnChoices) return;
    this.drawnChoices = key;
    const tags = Object.entries(this.runs[state.run]);
    const go = (changes) => {
      this.update(changes);
      return this.reload();
    };
    this.choices.replaceChildren(
      select("Run", Object.keys(this.runs).map((run) => [run, run]), state.run, (run) => go({ run })),
      select("Sentence", tags.map(([tag, { source }]) => [tag, `${tag}: ${shorten(visible(source), 36)}`]), state.tag, (tag) => go({ tag })),
    );
  }

  #say(text) {
    if (this.drawn) {
      this.problem = text;
      this.#drawHeader();
      return;
    }
    this.message.textContent = text;
    this.message.hidden = false;
    this.body.hidden = true;
  }

  // ------------------------------------------------------------ what the user does

  #select(map, heads, add) {
    if (add && map === this.state.map) for (const head of heads) this.#toggleHead(head);
    else this.update({ map, heads });
  }

  #toggleHead(head) {
    const others = this.state.heads.filter((other) => String(other) !== String(head));
    const heads = others.length === this.state.heads.length ? [...others, head] : others;
    heads.sort(([a, b], [c, d]) => a - c || b - d);
    if (heads.length) this.update({ heads });
  }

  #goTo(position) {
    const at = this.steps[Math.max(0, Math.min(this.steps.length - 1, position))];
    return this.update({ step: at.step });
  }

  async #play() {
    this.isPlaying = !this.isPlaying;
    this.playButton.textContent = this.isPlaying ? "❚❚" : "▶";
    if (!this.isPlaying) return;
    let position = this.steps.indexOf(this.at);
    if (position === this.steps.length - 1) position = -1;
    while (this.isPlaying && position < this.steps.length - 1) {
      const pause = new Promise((resolve) => setTimeout(resolve, FRAME_MILLISECONDS));
      await Promise.all([this.#goTo(++position), pause]);
      position = this.steps.indexOf(this.at);
    }
    if (this.isPlaying) this.#play();
  }

  #onKey(event) {
    const isTyping = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName);
    if (!this.drawn || event.ctrlKey || event.metaKey || event.altKey || (isTyping && event.target.type !== "checkbox")) return;
    const { state, steps, snapshot } = this;
    const position = steps.indexOf(this.at);
    const nextHead = (by) => {
      const heads = snapshot.maps[state.map].allHeads();
      const i = heads.findIndex((head) => String(head) === String(state.heads[0]));
      this.update({ heads: [heads[(i + by + heads.length) % heads.length]] });
    };
    const actions = {
      ArrowLeft: () => this.#goTo(position - 1),
      ArrowRight: () => this.#goTo(position + 1),
      Home: () => this.#goTo(0),
      End: () => this.#goTo(steps.length - 1),
      ArrowUp: () => nextHead(-1),
      ArrowDown: () => nextHead(1),
      " ": () => this.#play(),
      m: () => {
        const maps = Object.keys(snapshot.maps);
        const map = maps[(maps.indexOf(state.map) + 1) % maps.length];
        const { layers, heads } = snapshot.maps[map];
        const kept = state.heads.filter(([layer, head]) => layer < layers && head < heads);
        this.update({ map, heads: kept.length ? kept : [[0, 0]] });
      },
      w: () => this.#setOption("words", !state.words),
      h: () => this.#setOption("hide", !state.hide),
    };
    Object.keys(TABS).forEach((tab, i) => (actions[i + 1] = () => this.update({ tab })));
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  #setOption(name, value) {
    this.optionBoxes[name].querySelector("input").checked = value;
    return this.update({ [name]: value });
  }

  #onHover(place, view, event) {
    const isAnywhere = place.row >= 0 || place.column >= 0;
    this.#highlight(isAnywhere ? place : this.pin);
    if (!isAnywhere) return this.tooltip.hide();
    const matrix = view.matrix ?? view.heads[0].matrix;
    const { rows, columns, values } = matrix;
    const [row, column] = [rows[place.row], columns[place.column]];
    const spell = ({ text, pieces }) => (pieces.length > 1 ? `${text} (${pieces.join(" + ")})` : text);
    const lines =
      row && column
        ? [`${shorten(row.text, 60)} → ${shorten(column.text, 60)}`, `weight ${weight(values[place.row * columns.length + place.column])}`]
        : [spell(row ?? column), `token ${(row ? place.row : place.column) + 1}`];
    this.tooltip.show(event, lines);
  }

  #onPin(place) {
    const isSame = place.row === this.pin.row && place.column === this.pin.column;
    this.pin = isSame ? NOWHERE : place;
    this.#highlight(this.pin);
  }

  #highlight(place) {
    for (const view of [this.heatMap, this.bipartite, ...this.compared]) {
      if (view.element.isConnected && !view.element.closest("[hidden]")) view.highlight(place);
    }
  }

  #isVisible() {
    return !document.hidden && document.body.clientWidth > 0;
  }

  // ------------------------------------------------------------ the page

  #layOut() {
    const { state } = this;
    this.tooltip = new Tooltip();
    this.message = html("p", { class: "message" }, "Loading…");
    const onHover = (place, view, event) => this.#onHover(place, view, event);
    const onPin = (place) => this.#onPin(place);
    this.heatMap = new HeatMap(onHover, onPin);
    this.bipartite = new Bipartite(onHover, onPin);
    this.compared = [0, 1, 2].map(() => new HeatMap(onHover, onPin));
    const onStep = (step) => this.update({ step });
    this.curves = new Curves(onStep, this.tooltip);
    this.errorCurves = new Curves(onStep, this.tooltip);
    this.filmstrip = new Filmstrip(onStep);
    this.translations = new Translations(onStep);
    this.overview = new Overview(
      (map, heads, add) => this.#select(map, heads, add),
      (options) => this.update(options),
      this.tooltip,
    );

    this.choices = html("div", { class: "fields" });
    this.playButton = html("button", { class: "play", title: "Play (space)", "aria-label": "Play", click: () => this.#play() }, "▶");
    this.slider = html("input", {
      type: "range",
      min: 0,
      max: 0,
      "aria-label": "Step",
      input: () => this.#goTo(Number(this.slider.value)),
    });
    this.stepText = html("output", { class: "step" });
    const follow = checkbox("follow", state.follow, (value) => this.update(value ? { follow: value, step: this.steps.at(-1).step } : { follow: value }), "Go to each new step when it is there");
    this.stepBar = html("div", { class: "steps-bar" }, this.playButton, this.slider, this.stepText, follow);
    const link = html("button", { click: () => this.#copyLink(link), title: "Copy a link that restores this view" }, "Copy link");
    const help = html("details", { class: "help" }, html("summary", { title: "Keys" }, "?"), html("dl", {}, ...KEYS.flatMap(([key, what]) => [html("dt", {}, key), html("dd", {}, what)])));
    this.sentences = html("div", { class: "sentences" });
    this.noteBox = html("details", { class: "notes", hidden: true });

    this.headToggles = html("div", { class: "fields" });
    this.legend = html("div", { class: "legend" });
    const threshold = html("input", {
      type: "range",
      min: 0,
      max: 0.5,
      step: 0.01,
      value: state.threshold,
      "aria-label": "Hide lines below",
      input: () => {
        thresholdText.textContent = Number(threshold.value).toFixed(2);
        this.update({ threshold: Number(threshold.value) });
      },
    });
    const thresholdText = html("span", { class: "number" }, state.threshold.toFixed(2));
    const bipartiteFields = html(
      "div",
      { class: "fields" },
      html("label", { class: "field" }, "hide below", threshold, thresholdText),
      checkbox("horizontal", state.horizontal, (horizontal) => this.update({ horizontal }), "Sentences above each other, as suits Chinese"),
    );
    this.compareControls = html("div", { class: "fields" });
    const panels = {
      explore: [
        panel("heat-map", this.heatMap.element, { tools: [this.legend], picture: true }),
        panel("bipartite", this.bipartite.element, { title: "From source to target", tools: [this.headToggles, bipartiteFields], picture: true }),
      ],
      time: [panel("filmstrip", this.filmstrip.element), panel("curves", this.curves.element), panel("translations", this.translations.element)],
      compare: [
        ...this.compared.map((view, i) => panel(["first", "second", "difference"][i], view.element, { picture: true })),
        panel("changed-heads"),
      ],
      read: [panel("links", null, { picture: true }), panel("coverage"), panel("alignment-error", this.errorCurves.element)],
    };
    this.tabs = {};
    for (const [name, label] of Object.entries(TABS)) {
      const button = html("button", { role: "tab", "data-tab": name, click: () => this.update({ tab: name }) }, label);
      const before = name === "compare" ? [this.compareControls] : [];
      const content = html("div", { class: `views ${name}`, role: "tabpanel" }, ...before, ...panels[name].map(({ element }) => element));
      this.tabs[name] = { button, panel: content, panels: panels[name] };
    }
    this.optionBoxes = {
      words: checkbox("words", state.words, (words) => this.update({ words }), "Join the pieces of a word"),
      hide: checkbox("hide ends, punctuation", state.hide, (hide) => this.update({ hide }), "Leave out ends of sentence and punctuation; rows add up to 1 again"),
    };
    const scales = Object.entries(SCALES).map(([name, { label }]) => [name, label]);
    const tabBar = html(
      "div",
      { class: "tab-bar" },
      html("div", { role: "tablist" }, ...Object.values(this.tabs).map(({ button }) => button)),
      html("div", { class: "fields" }, ...Object.values(this.optionBoxes), select("colour scale", scales, state.scale, (scale) => this.update({ scale }))),
    );
    this.main = html("main", {}, tabBar, ...Object.values(this.tabs).map(({ panel: content }) => content));
    this.body = html("div", { class: "columns", hidden: true }, html("aside", {}, this.overview.element), this.main);
    document.body.append(
      html("header", {}, html("div", { class: "bar" }, this.choices, this.stepBar, html("div", { class: "fields" }, link, help)), this.sentences, this.noteBox),
      this.message,
      this.body,
      this.tooltip.element,
    );
  }

  async #copyLink(button) {
    const address = linkTo(toStrings({ ...this.state, step: this.at.step, follow: false }));
    try {
      await navigator.clipboard.writeText(address);
      button.textContent = "Copied";
    } catch {
      button.textContent = "It is in the address bar"; // a frame may not write to the clipboard
    }
    setTimeout(() => (button.textContent = "Copy link"), 1500);
  }
}

const isEmpty = ({ rows, columns }) => !rows.length || !columns.length;

/** Returns the width inside an element's padding. */
function innerWidth(element) {
  return Math.max(240, element.clientWidth - 4);
}

/** Returns a titled box: {element, title, about, content}. */
function panel(name, content = null, { title = "", tools = [], picture = false } = {}) {
  const heading = html("h2", {}, title);
  const about = html("span", { class: "dim about" });
  const box = html("div", { class: "content" }, content);
  const savers = picture
    ? ["svg", "png"].map((kind) =>
        html(
          "button",
          {
            class: "save",
            title: `Save as ${kind.toUpperCase()}`,
            click: () => {
              const drawing = box.querySelector("svg");
              if (drawing) save(drawing, `attention-${name}`, kind);
            },
          },
          kind.toUpperCase(),
        ),
      )
    : [];
  const element = html(
    "section",
    { class: "panel", "data-panel": name },
    html("div", { class: "panel-title" }, heading, about, html("span", { class: "savers" }, ...savers)),
    ...tools,
    box,
  );
  return { element, title: heading, about, content: box };
}

function drawLegend(element, scale) {
  if (scale === "row") {
    element.replaceChildren(html("span", { class: "dim" }, "dark: the largest weight of its row"));
    return;
  }
  const colors = weightColors();
  const stops = colors.map(css).join(", ");
  const marks = [0, 0.05, 0.2, 0.5, 1].map((value) =>
    html("span", { style: `left: ${100 * SCALES[scale].position(value)}%` }, `${value}`),
  );
  element.replaceChildren(
    html("div", { class: "ramp" }, html("div", { style: `background: linear-gradient(to right, ${stops})` }), ...marks),
  );
}
void headType;
