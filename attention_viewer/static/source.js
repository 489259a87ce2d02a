// Where snapshots come from: TensorBoard's server, or the page itself. Both have the same methods:
// probes(), series(run, tag), payload(run, tag, step, time).

import { decodeSnapshot } from "./snapshot.js";

/** Asks the plugin's routes; addresses are relative, so that a path prefix or a proxy works. */
export class Server {
  isLive = true; // there may be more later

  probes() {
    return this.#get("probes").then((response) => response.json());
  }

  series(run, tag) {
    return this.#get("series", { run, tag }).then((response) => response.json());
  }

  payload(run, tag, step, time) {
    // The time makes another address of a step that was trained again.
    return this.#get("snapshot", { run, tag, step, time }).then((response) =>
      response.arrayBuffer(),
    );
  }

  async #get(route, query = {}) {
    const response = await fetch(`${route}?${new URLSearchParams(query)}`);
    if (!response.ok) throw new Error(await response.text());
    return response;
  }
}

/** Reads what `page.py` put into the page. */
export class Embedded {
  isLive = false;

  constructor(data) {
    this.data = data;
  }

  async probes() {
    return { runs: this.data.runs, notes: [] };
  }

  async series(run, tag) {
    return this.data.series[tag];
  }

  async payload(run, tag) {
    return Uint8Array.from(atob(this.data.payloads[tag]), (c) => c.charCodeAt(0)).buffer;
  }
}

/** Keeps decoded snapshots, up to a number of bytes; the least recently used go first. */
export class Snapshots {
  #kept = new Map(); // key -> promise
  #bytes = 0;

  constructor(source, maxBytes = 192e6) {
    this.source = source;
    this.maxBytes = maxBytes;
  }

  /** Returns a promise of the snapshot of one {step, time} of a probe. */
  get(run, tag, { step, time }) {
    const key = JSON.stringify([run, tag, step, time]);
    let kept = this.#kept.get(key);
    if (kept)
      this.#kept.delete(key); // to stand behind all others
    else kept = this.#load(key, run, tag, step, time);
    this.#kept.set(key, kept);
    return kept;
  }

  /** Returns whether a snapshot is here, or on its way. */
  has(run, tag, { step, time }) {
    return this.#kept.has(JSON.stringify([run, tag, step, time]));
  }

  get isNearlyFull() {
    return this.#bytes > 0.8 * this.maxBytes;
  }

  async #load(key, run, tag, step, time) {
    let snapshot;
    try {
      snapshot = await decodeSnapshot(await this.source.payload(run, tag, step, time));
    } catch (error) {
      this.#kept.delete(key); // the next one who asks tries again
      throw new Error(`Step ${step} can't be shown: ${error.message || "damaged"}`);
    }
    this.#bytes += snapshot.bytes;
    for (const [oldKey, old] of this.#kept) {
      if (this.#bytes <= this.maxBytes || oldKey === key) break;
      this.#kept.delete(oldKey);
      old.then(
        ({ bytes }) => (this.#bytes -= bytes),
        () => {},
      );
    }
    return snapshot;
  }
}
