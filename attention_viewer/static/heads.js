// Words about maps, heads and their measures.

export const MAPS = {
  encoder: {
    name: "Encoder",
    long: "Encoder self-attention",
    about: "each source token (row) looks at the source",
  },
  decoder: {
    name: "Decoder",
    long: "Decoder self-attention",
    about: "each reference token that was read (row) looks at those before it",
  },
  cross: {
    name: "Cross, reference",
    long: "Cross-attention, reference",
    about: "the source as seen when each reference token (row) is predicted",
  },
  translation: {
    name: "Cross, translation",
    long: "Cross-attention, own translation",
    about: "the source as seen when the model writes each token (row) of its own translation",
  },
};

const isCross = (map) => map === "cross" || map === "translation";

export const MEASURES = {
  entropy: ["Entropy", "0: each token looks at one place; 1: at all places alike"],
  confidence: ["Confidence", "largest weight of a row, on average"],
  diagonal: ["Diagonal", "weight within one token of the diagonal"],
  previous: ["Previous token", "weight on the token before"],
  same: ["Same token", "weight on the token itself"],
  next: ["Next token", "weight on the token after"],
  special: ["Sentence ends", "weight on the start or end of sentence"],
  punctuation: ["Punctuation", "weight on punctuation"],
  alignment_error: [
    "Alignment error",
    "of the largest weights against gold links; attention is not alignment",
  ],
};

/** What heads may mostly do: a short word, and what it means. */
export const TYPES = {
  prev: "previous token",
  next: "next token",
  self: "the token itself",
  start: "start of sentence, as a resting place",
  end: "end of sentence, as a resting place",
  punct: "punctuation",
  diag: "along the diagonal",
  even: "everywhere alike",
};

/** Returns what a head mostly does, a key of TYPES, or "". */
export function headType(measures, map) {
  const most = 0.5;
  if (measures.previous >= most) return "prev";
  if (measures.next >= most) return "next";
  if (measures.same >= most) return "self";
  if (measures.special >= most) return map === "decoder" ? "start" : "end";
  if (measures.punctuation >= most) return "punct";
  if (isCross(map) && measures.diagonal >= 0.6) return "diag";
  return measures.entropy >= 0.9 ? "even" : "";
}

export const headName = ([layer, head]) => `layer ${layer + 1}, head ${head + 1}`;

/** Returns the name of a selection of heads. */
export function selectionName(heads, map) {
  if (heads.length === 1) return headName(heads[0]);
  if (heads.length === map.layers * map.heads) return "mean of all heads";
  const [layer] = heads[0];
  if (heads.every(([other]) => other === layer)) {
    if (heads.length === map.heads) return `layer ${layer + 1}, mean of its heads`;
    return `layer ${layer + 1}, mean of heads ${heads.map(([, head]) => head + 1).join(", ")}`;
  }
  return `mean of ${heads.length} heads`;
}

/** The measures of all heads of a probe over its steps, as the series route answers them. */
export class Measures {
  constructor(probe, { steps, values }) {
    Object.assign(this, { names: probe.measures, steps, values });
    let first = 0;
    this.firstHead = {};
    this.headsOfLayer = {};
    for (const { name, layers, heads } of probe.maps) {
      this.firstHead[name] = first;
      this.headsOfLayer[name] = heads;
      first += layers * heads;
    }
  }

  /** Returns the index of the last measured step that is not after `step`, or -1. */
  indexOf(step) {
    return this.steps.findLastIndex((measured) => measured <= step);
  }

  /** Returns one measure of one head at the step of an index, or null. */
  at(index, name, map, [layer, head]) {
    const row = this.firstHead[map] + layer * this.headsOfLayer[map] + head;
    return this.values[index]?.[row * this.names.length + this.names.indexOf(name)] ?? null;
  }

  /** Returns {measure: value} of one head. */
  all(index, map, head) {
    return Object.fromEntries(this.names.map((name) => [name, this.at(index, name, map, head)]));
  }

  /** Returns the measures that a map has. */
  of(map) {
    const last = this.steps.length - 1;
    return this.names.filter((name) => this.at(last, name, map, [0, 0]) !== null);
  }
}

/** Returns the cross head whose largest weights are best taken for links, and why. */
export function bestCrossHead(map, measures, index) {
  const heads = map.allHeads();
  const errors = heads.map((head) => measures.at(index, "alignment_error", "cross", head));
  if (errors.some((error) => error !== null)) {
    const best = heads[errors.indexOf(Math.min(...errors.filter((error) => error !== null)))];
    return { head: best, reason: "lowest alignment error" };
  }
  // Without gold: sure of itself, on text, and not always at the same place.
  const scores = heads.map((head) => {
    const { confidence, special, punctuation } = measures.all(index, map.name, head);
    return confidence * (1 - special) * (1 - punctuation) * spread(map, head);
  });
  return { head: heads[scores.indexOf(Math.max(...scores))], reason: "sharpest on the text" };
}

/** Returns the share of columns that are the largest of some row. */
function spread(map, head) {
  const codes = map.codesOf(head);
  const found = new Set();
  for (let row = 0; row < map.numRows; row++) {
    const start = row * map.numColumns;
    const weights = codes.subarray(start, start + map.numColumns);
    found.add(weights.indexOf(Math.max(...weights)));
  }
  return found.size / Math.min(map.numRows, map.numColumns);
}
