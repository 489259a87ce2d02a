// Holds what is shown, and draws it anew when it changes.

import { SCALES } from "./color.js";
import { Compare } from "./compare.js";
import { checkbox, html, select, weight } from "./dom.js";
import { Explore } from "./explore.js";
import { Header } from "./header.js";
import { MAPS, bestCrossHead, selectionName } from "./heads.js";
import { onKey } from "./keys.js";
import { followTheme, linkTo, onReload, readLocation, writeLocation } from "./location.js";
import { matrixOf } from "./matrix.js";
import { Overview } from "./overview.js";
import { Read } from "./read.js";
import { fromStrings, toStrings } from "./state.js";
import { Store } from "./store.js";
import { Time } from "./time.js";
import { shorten } from "./tokens.js";
import { Tooltip } from "./tooltip.js";

const TABS = { explore: "Explore", time: "Over time", compare: "Compare", read: "Read" };
const POLL_SECONDS = 5;
const FRAME_MILLISECONDS = 150;
const NOWHERE = { row: -1, column: -1 };

export class App {
  constructor(source) {
    this.store = new Store(source);
    this.state = fromStrings(readLocation());
    this.pin = NOWHERE; // {row, column} that was clicked
    this.outage = ""; // why the server can't be asked
    this.problem = ""; // why the step can't be shown
    this.onHover = (place, view, event) => this.#hover(place, view, event);
    this.onPin = (place) => {
      const isSame = place.row === this.pin.row && place.column === this.pin.column;
      this.#highlight((this.pin = isSame ? NOWHERE : place));
    };
  }

  /** Loads what there is, draws it, and looks for news from then on. */
  async start() {
    followTheme(() => this.isReady && this.draw());
    this.#layOut();
    await this.reload();
    new ResizeObserver(() => this.isReady && this.draw()).observe(this.main);
    document.addEventListener("keydown", (event) => this.isReady && onKey(event, this));
    if (!this.store.source.isLive) return;
    onReload(() => this.reload());
    const isVisible = () => !document.hidden && document.body.clientWidth > 0;
    setInterval(() => isVisible() && this.reload(), 1000 * POLL_SECONDS);
  }

  /** Changes what is shown. */
  update(changes) {
    Object.assign(this.state, changes);
    writeLocation(toStrings(this.state));
    return this.draw();
  }

  /** Looks for new runs, probes and steps. */
  async reload() {
    const { state, store } = this;
    try {
      await store.findProbes();
      const runs = Object.keys(store.runs);
      if (!runs.length) {
        return this.#say("No attention was logged yet. Train with attention_every_steps above 0.");
      }
      if (!store.runs[state.run]) state.run = runs[0];
      if (!store.runs[state.run][state.tag]) [state.tag] = Object.keys(store.runs[state.run]);
      const wasAtEnd = state.step < 0 || state.step === store.steps.at(-1)?.step;
      if (await store.choose(state.run, state.tag)) {
        this.#fitToProbe();
        if (state.follow && wasAtEnd) state.step = store.steps.at(-1).step;
        await this.draw();
      }
      this.outage = "";
    } catch (error) {
      this.outage = `The data can't be read: ${error.message}`;
      if (!this.isReady) return this.#say(this.outage);
    }
    this.header.drawNotes();
  }

  /** Shows another run or sentence. */
  choose(changes) {
    Object.assign(this.state, changes);
    writeLocation(toStrings(this.state));
    return this.reload();
  }

  /** Draws; while one drawing is under way, the newest state waits for it and no other does. */
  draw() {
    this.isStale = true;
    this.drawing ??= this.#drawUntilFresh().finally(() => (this.drawing = null));
    return this.drawing;
  }

  // ------------------------------------------------------------ for the views

  /** Returns the matrix of some heads of a snapshot: of the selected ones. */
  matrix(snapshot, heads = this.state.heads) {
    const map = snapshot.maps[this.state.map];
    return matrixOf(snapshot, map, map.mean(heads), this.state);
  }

  /** Returns what the selection is called. */
  title() {
    const map = this.snapshot.maps[this.state.map];
    return `${MAPS[map.name]?.long ?? map.name}: ${selectionName(this.state.heads, map)}`;
  }

  /** Adds a head to the selection or takes it away; one stays. */
  toggleHead(head) {
    const { heads } = this.state;
    const others = heads.filter((other) => String(other) !== String(head));
    const chosen = others.length < heads.length ? others : [...others, head];
    chosen.sort(([a, b], [c, d]) => a - c || b - d);
    if (chosen.length) this.update({ heads: chosen });
  }

  /** Goes to the step at a position. */
  goTo(position) {
    const { steps } = this.store;
    const at = steps[Math.max(0, Math.min(steps.length - 1, position))];
    return this.update({ step: at.step });
  }

  /** Goes to each new step from now on, or no more. */
  follow(isOn) {
    return this.update(
      isOn ? { follow: true, step: this.store.steps.at(-1).step } : { follow: false },
    );
  }

  /** Plays from here, or from the start; or stops. */
  async play() {
    this.isPlaying = !this.isPlaying;
    this.header.drawPlaying(this.isPlaying);
    const position = () => this.store.steps.indexOf(this.at);
    const isAtEnd = () => position() === this.store.steps.length - 1;
    if (this.isPlaying && isAtEnd()) await this.goTo(0);
    while (this.isPlaying && !isAtEnd()) {
      const pause = new Promise((resolve) => setTimeout(resolve, FRAME_MILLISECONDS));
      await Promise.all([this.goTo(position() + 1), pause]);
      if (this.problem) break;
    }
    if (this.isPlaying) this.play();
  }

  /** Sets "words" or "hide", and its box. */
  setOption(name, value) {
    this.options[name].querySelector("input").checked = value;
    return this.update({ [name]: value });
  }

  /** Returns the address of what is shown. */
  link() {
    return linkTo(toStrings({ ...this.state, step: this.at.step, follow: false }));
  }

  // ------------------------------------------------------------ drawing

  async #drawUntilFresh() {
    while (this.isStale) {
      this.isStale = false;
      try {
        await this.#drawOnce();
        this.problem = "";
      } catch (error) {
        this.problem = error.message;
      }
      if (this.at) this.header.draw();
      if (!this.snapshot) this.#say(this.problem);
    }
  }

  async #drawOnce() {
    const { state, store } = this;
    if (!store.steps.length) throw new Error("This sentence has no step that can be read.");
    this.at = store.at(state.step);
    const snapshot = await store.load(this.at);
    const map = snapshot.maps[state.map];
    if (!map) throw new Error(`Step ${this.at.step} has no map ${state.map}`);
    this.snapshot = snapshot;
    this.index = store.measures.indexOf(this.at.step);
    if (!state.heads.length) state.heads = [bestCrossHead(map, store.measures, this.index).head];
    const isSingle = store.steps.length === 1 && Object.keys(store.runs).length === 1;
    this.buttons.time.hidden = this.buttons.compare.hidden = isSingle; // nothing to compare with
    const isShown = state.tab in this.views && !this.buttons[state.tab].hidden;
    const tab = isShown ? state.tab : "explore";
    for (const [name, { element }] of Object.entries(this.views)) {
      element.hidden = name !== tab;
      this.buttons[name].setAttribute("aria-selected", name === tab);
    }
    this.message.hidden = true;
    this.body.hidden = false;
    this.overview.draw(this);
    await this.views[tab].draw();
    this.#highlight(this.pin);
    if (!this.isReady) document.body.dataset.ready = "true";
    this.isReady = true;
    const isTime = () => state.tab === "time";
    const wanted = `${store.version} ${isTime()}`;
    if (wanted === this.prefetched) return;
    this.prefetched = wanted;
    store.prefetch(
      () => this.at,
      isTime,
      () => isTime() && this.views.time.drawTranslations(),
    );
  }

  /** Drops what the chosen probe does not have. */
  #fitToProbe() {
    const { state, store } = this;
    const { maps } = store.probe;
    if (!maps.some(({ name }) => name === state.map)) {
      state.map = (maps.find(({ name }) => name === "cross") ?? maps.at(-1)).name;
    }
    const { layers, heads } = maps.find(({ name }) => name === state.map);
    state.heads = state.heads.filter(([layer, head]) => layer < layers && head < heads);
  }

  /** Shows a text in the place of the views, before there is anything to show. */
  #say(text) {
    this.message.textContent = text;
    this.message.hidden = false;
    this.body.hidden = true;
  }

  #hover(place, view, event) {
    const isAnywhere = place.row >= 0 || place.column >= 0;
    this.#highlight(isAnywhere ? place : this.pin);
    if (!isAnywhere) return this.tooltip.hide();
    const { rows, columns, values } = view.matrix;
    const [row, column] = [rows[place.row], columns[place.column]];
    const spell = ({ text, pieces }) =>
      pieces.length > 1 ? `${text} (${pieces.join(" + ")})` : text;
    this.tooltip.show(
      event,
      row && column
        ? [
            `${shorten(row.text, 60)} → ${shorten(column.text, 60)}`,
            `weight ${weight(values[place.row * columns.length + place.column])}`,
          ]
        : [spell(row ?? column), `token ${(row ? place.row : place.column) + 1}`],
    );
  }

  #highlight(place) {
    for (const view of Object.values(this.views)) if (!view.element.hidden) view.highlight?.(place);
  }

  // ------------------------------------------------------------ the page

  #layOut() {
    const { state } = this;
    this.tooltip = new Tooltip();
    this.header = new Header(this);
    this.overview = new Overview(this);
    this.views = {
      explore: new Explore(this),
      time: new Time(this),
      compare: new Compare(this),
      read: new Read(this),
    };
    this.buttons = {};
    for (const [name, label] of Object.entries(TABS)) {
      const click = () => this.update({ tab: name });
      this.buttons[name] = html("button", { role: "tab", "data-tab": name, click }, label);
    }
    const option = (name, label, title) =>
      checkbox(label, state[name], (value) => this.update({ [name]: value }), title);
    this.options = {
      words: option("words", "words", "Join the pieces of a word"),
      hide: option(
        "hide",
        "hide ends, punctuation",
        "Leave out sentence ends and punctuation; rows add up to 1 again",
      ),
    };
    const scales = Object.entries(SCALES).map(([name, { label }]) => [name, label]);
    const scale = select("colour scale", scales, state.scale, (value) =>
      this.update({ scale: value }),
    );
    this.main = html(
      "main",
      {},
      html(
        "div",
        { class: "tab-bar" },
        html("div", { role: "tablist" }, ...Object.values(this.buttons)),
        html("div", { class: "fields" }, ...Object.values(this.options), scale),
      ),
      ...Object.values(this.views).map(({ element }) => element),
    );
    this.message = html("p", { class: "message" }, "Loading…");
    this.body = html(
      "div",
      { class: "columns", hidden: true },
      html("aside", {}, this.overview.element),
      this.main,
    );
    document.body.append(this.header.element, this.message, this.body, this.tooltip.element);
  }
}
