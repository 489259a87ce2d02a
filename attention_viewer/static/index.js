// TensorBoard's entry: it imports this module and calls render().

import { App } from "./app.js";
import { html } from "./dom.js";
import { Server } from "./source.js";

export function render() {
  document.documentElement.lang = "en";
  const style = html("link", { rel: "stylesheet", href: "style.css" });
  // Sizes are measured, so nothing may be drawn before the style is there.
  style.addEventListener("load", () => new App(new Server()).start());
  document.head.append(style);
}
