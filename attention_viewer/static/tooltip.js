// A small box beside the pointer, always inside the window.

import { html } from "./dom.js";

export class Tooltip {
  constructor() {
    this.element = html("div", { class: "tooltip", role: "tooltip", hidden: true });
  }

  /** Shows lines of text beside the pointer; the first one is bold. */
  show(event, lines) {
    this.element.replaceChildren(
      ...lines.filter(Boolean).map((line, i) => html(i ? "div" : "b", {}, line)),
    );
    this.element.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = this.element;
    const x = Math.min(event.clientX + 14, window.innerWidth - width - 6);
    const below = event.clientY + 16;
    const y = below + height > window.innerHeight ? event.clientY - height - 8 : below;
    this.element.style.left = `${Math.max(4, x)}px`;
    this.element.style.top = `${Math.max(4, y)}px`;
  }

  hide() {
    this.element.hidden = true;
  }
}
