// Makes elements. Strings become text nodes, never markup: tokens may hold anything.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

/** Returns an HTML element; an attribute that is a function listens to the event of its name. */
export function html(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Returns an SVG element, likewise. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG_NAMESPACE, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

/** Returns a <select>: choices are [value, label] pairs. */
export function select(label, choices, value, onChange) {
  const box = html("select", { "aria-label": label, change: () => onChange(box.value) });
  box.append(
    ...choices.map(([v, text]) => html("option", { value: v, selected: v === value }, text)),
  );
  return html("label", { class: "field" }, label, box);
}

/** Returns a labelled checkbox. */
export function checkbox(label, checked, onChange, title = "") {
  const box = html("input", { type: "checkbox", checked, change: () => onChange(box.checked) });
  return html("label", { class: "field check", title }, box, label);
}

let ruler;

/** Returns the width of a text in pixels. */
export function textWidth(text, size, weight = "normal") {
  ruler ??= document.createElement("canvas").getContext("2d");
  ruler.font = `${weight} ${size}px ${FONT}`;
  return ruler.measureText(text).width;
}

export const FONT =
  'system-ui, "Noto Sans", "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", sans-serif';

/** Returns a number as people read it: 12,345. */
export const count = (number) => number.toLocaleString("en-US");

/** Returns a weight with the digits that its 8 bits hold. */
export const weight = (value) => (value < 0.1 ? value.toFixed(3) : value.toFixed(2));
