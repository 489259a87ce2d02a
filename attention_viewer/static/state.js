// What is shown, as it stands in the address.

const DEFAULTS = {
  run: "",
  tag: "",
  step: -1, // the newest
  map: "",
  heads: [], // [layer, head], from 0; empty: chosen when the data is there
  tab: "explore",
  scale: "root",
  words: false,
  hide: false,
  horizontal: false,
  threshold: 0.05,
  measure: "type",
  order: "layers",
  otherRun: "",
  otherStep: "first", // "first", "last", "same" or a number
  follow: true,
};

/** Returns the options that differ from the defaults, as strings. */
export function toStrings(state) {
  const found = {};
  for (const [name, value] of Object.entries(DEFAULTS)) {
    const text = toText(state[name]);
    if (text !== toText(value)) found[name] = text;
  }
  return found;
}

const toText = (value) =>
  Array.isArray(value) ? value.map((head) => head.join(".")).join(",") : `${value}`;

/** Returns a state; what is unknown or no value is left at its default. */
export function fromStrings(strings) {
  const state = { ...DEFAULTS };
  for (const [name, text] of Object.entries(strings)) {
    const value = parse(DEFAULTS[name], text);
    if (value !== undefined) state[name] = value;
  }
  return state;
}

function parse(standard, text) {
  if (typeof standard === "string") return text;
  if (typeof standard === "boolean") return text === "true";
  if (typeof standard === "number") return Number.isFinite(Number(text)) ? Number(text) : undefined;
  if (!Array.isArray(standard)) return undefined;
  const heads = text.split(",").map((head) => head.split(".").map(Number));
  return heads.every((head) => head.length === 2 && head.every(Number.isInteger))
    ? heads
    : undefined;
}
