// Entry of the page that page.py writes: style and data are in it.

import { App } from "./app.js";
import { Embedded } from "./source.js";

const data = JSON.parse(document.getElementById("attention-data").textContent);
new App(new Embedded(data)).start();
