// The data behind the views: runs and probes, the steps and measures of the one that is shown, and
// snapshots.

import { Measures } from "./heads.js";
import { Snapshots } from "./source.js";

const PARALLEL_LOADS = 3;

export class Store {
  runs = {};
  notes = []; // of all runs, about what can't be shown
  seriesNotes = []; // of the probe
  steps = []; // {step, time}
  texts = new Map(); // step -> translation, of the probe
  #other = null;

  constructor(source) {
    this.source = source;
    this.snapshots = new Snapshots(source);
  }

  /** Looks for runs and probes. */
  async findProbes() {
    const { runs, notes } = await this.source.probes();
    this.runs = sorted(runs);
    for (const run of Object.keys(runs)) this.runs[run] = sorted(runs[run]);
    this.notes = notes;
  }

  get probe() {
    return this.runs[this.run][this.tag];
  }

  /** Loads the steps and measures of a probe; returns whether there was anything new. */
  async choose(run, tag) {
    const version = this.#version(run, tag);
    if (version === this.version) return false;
    const series = await this.source.series(run, tag);
    if (run !== this.run || tag !== this.tag) this.texts.clear();
    Object.assign(this, {
      run,
      tag,
      version,
      steps: series.steps,
      seriesNotes: series.notes ?? [],
    });
    this.measures = new Measures(this.probe, series.measures);
    return true;
  }

  /** Returns the {step, time} that is nearest to a step; the newest for -1. */
  at(step, steps = this.steps) {
    return step < 0 ? steps.at(-1) : nearest(steps, step);
  }

  /** Returns the promise of a snapshot of the probe. */
  async load(at, run = this.run) {
    const { tag } = this;
    const snapshot = await this.snapshots.get(run, tag, at);
    if (run === this.run && tag === this.tag)
      this.texts.set(at.step, snapshot.texts.translation ?? "");
    return snapshot;
  }

  /** Returns the runs that have the probe's tag. */
  runsWithTag() {
    return Object.keys(this.runs).filter((run) => this.runs[run][this.tag]);
  }

  /** Returns {run, steps, measures} of the probe in a run; in its own, if that has none. */
  async inRun(run) {
    if (run === this.run || !this.runs[run]?.[this.tag]) {
      return { run: this.run, steps: this.steps, measures: this.measures };
    }
    const version = this.#version(run, this.tag);
    if (this.#other?.version !== version) {
      const { steps, measures } = await this.source.series(run, this.tag);
      this.#other = {
        version,
        run,
        steps,
        measures: new Measures(this.runs[run][this.tag], measures),
      };
    }
    return this.#other;
  }

  /**
   * Loads the other steps, the nearest to the current one first, until memory is nearly full.
   *
   * @param current Gives the current {step, time}.
   * @param needsTexts Whether to go on for the translations alone.
   * @param onProgress Called now and then.
   */
  async prefetch(current, needsTexts, onProgress) {
    const { version, steps, run, tag } = this;
    const token = (this.prefetching = {});
    const waiting = new Set(steps);
    const work = async () => {
      while (waiting.size && this.prefetching === token && this.version === version) {
        const at = nearest([...waiting], current().step);
        waiting.delete(at);
        const isKnown = this.texts.has(at.step);
        if (isKnown && this.snapshots.has(run, tag, at)) continue;
        if (this.snapshots.isNearlyFull && (isKnown || !needsTexts())) continue;
        await this.load(at).catch(() => this.texts.set(at.step, ""));
        if (waiting.size % 20 === 0) onProgress();
      }
    };
    await Promise.all(Array.from({ length: PARALLEL_LOADS }, work));
    onProgress();
  }

  #version(run, tag) {
    const { last_step: step, last_time: time } = this.runs[run][tag];
    return JSON.stringify([run, tag, step, time]);
  }
}

/** Returns an object with its keys in the order in which people count: probe-2, probe-10. */
function sorted(object) {
  const { compare } = new Intl.Collator("en", { numeric: true });
  return Object.fromEntries(Object.entries(object).sort(([a], [b]) => compare(a, b)));
}

function nearest(steps, step) {
  const distance = (at) => Math.abs(at.step - step);
  return steps.reduce((best, at) => (distance(at) < distance(best) ? at : best));
}
