// Colours: one scale for weights, one for differences, one colour for each head.

const WEIGHT_STOPS = {
  light: ["#ffffff", "#dbe9f6", "#a6cbe6", "#5ba3d0", "#2171b5", "#08306b"],
  dark: ["#20262e", "#21405c", "#27628f", "#3c8cc4", "#84c1e8", "#f2faff"],
};
const DIFFERENCE_STOPS = {
  light: ["#1a56b0", "#8ab2e8", "#ffffff", "#f2a48f", "#b8281c"],
  dark: ["#7db4ff", "#2d5c9c", "#20262e", "#9c4034", "#ff8f7a"],
};
const HEAD_COLORS = {
  light: ["#1f6fb4", "#d95f02", "#2a8f3c", "#c2185b", "#7b52ab", "#8c5a3c", "#00838f", "#7a7a00"],
  dark: ["#6db3f2", "#ff9f4a", "#6fd07f", "#ff7fae", "#b99cf0", "#d4a382", "#4dd0e1", "#d4d45a"],
};
const STEPS = 64;

export const theme = () => document.documentElement.dataset.theme ?? "light";

/** Returns the colour of a head's lines and curves. */
export function headColor(head) {
  const colors = HEAD_COLORS[theme()];
  return colors[head % colors.length];
}

const tables = {};

function table(kind, stops) {
  return (tables[`${kind} ${theme()}`] ??= Array.from({ length: STEPS }, (_, i) =>
    mix(stops[theme()], i / (STEPS - 1)),
  ));
}

/** Returns STEPS colours [r, g, b] for weights from 0 to 1. */
export const weightColors = () => table("weight", WEIGHT_STOPS);

/** Returns STEPS colours [r, g, b] for differences from -1 to 1. */
export const differenceColors = () => table("difference", DIFFERENCE_STOPS);

function mix(stops, position) {
  const at = position * (stops.length - 1);
  const i = Math.min(Math.floor(at), stops.length - 2);
  const [from, to] = [stops[i], stops[i + 1]].map((stop) =>
    [1, 3, 5].map((start) => parseInt(stop.slice(start, start + 2), 16)),
  );
  return from.map((value, channel) => Math.round(value + (to[channel] - value) * (at - i)));
}

export const css = ([red, green, blue]) => `rgb(${red},${green},${blue})`;

/** Scales from weight to the position 0 to 1 in the colours; "root" lets small weights be seen. */
export const SCALES = {
  root: { label: "square root", position: (value) => Math.sqrt(value) },
  linear: { label: "linear", position: (value) => value },
  row: { label: "share of row's maximum", position: (value, rowMax) => value / (rowMax || 1) },
};

/** Returns the index of the colour at a position. */
export const step = (position) =>
  Math.max(0, Math.min(STEPS - 1, Math.round(position * (STEPS - 1))));
