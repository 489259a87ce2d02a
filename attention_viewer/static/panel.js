// A titled box, with buttons that save its drawing.

import { html } from "./dom.js";
import { save } from "./picture.js";

/** Returns {element, title, about, content}; the caller fills in title and about. */
export function panel(name, content = null, { tools = [], picture = false } = {}) {
  const title = html("h2");
  const about = html("div", { class: "dim about" });
  const box = html("div", { class: "content" }, content);
  const button = (kind) => {
    const click = () => {
      const drawing = box.querySelector("svg");
      if (drawing) save(drawing, `attention-${name}`, kind);
    };
    return html(
      "button",
      { class: "save", title: `Save as ${kind.toUpperCase()}`, click },
      kind.toUpperCase(),
    );
  };
  const savers = html("span", { class: "savers" }, ...(picture ? ["svg", "png"].map(button) : []));
  const heading = html("div", { class: "panel-title" }, title, savers, about);
  const element = html("section", { class: "panel", "data-panel": name }, heading, ...tools, box);
  return { element, title, about, content: box };
}

/** Returns the width that a drawing in an element may have. */
export const widthOf = (element) => Math.max(240, element.clientWidth - 4);

/** Returns a line of text in the place of a drawing. */
export const remark = (text) => html("p", { class: "dim" }, text);
