// Saves a view as SVG or PNG.

import { html } from "./dom.js";

const STYLED = [
  "fill",
  "stroke",
  "stroke-width",
  "stroke-opacity",
  "fill-opacity",
  "font-style",
  "font-weight",
  "visibility",
  "stroke-dasharray",
];

/** Returns the text of a stand-alone SVG: what the style sheet says becomes attributes. */
function toSvgText(element) {
  const copy = element.cloneNode(true);
  const originals = [element, ...element.querySelectorAll("*")];
  const copies = [copy, ...copy.querySelectorAll("*")];
  originals.forEach((original, i) => {
    if (!original.hasAttribute("class")) return;
    const style = getComputedStyle(original);
    for (const name of STYLED) copies[i].setAttribute(name, style.getPropertyValue(name));
    copies[i].removeAttribute("class");
  });
  const { width, height } = element.viewBox.baseVal;
  const background = document.createElementNS(element.namespaceURI, "rect");
  const color = getComputedStyle(document.body).backgroundColor;
  for (const [name, value] of Object.entries({ width, height, fill: color }))
    background.setAttribute(name, value);
  copy.prepend(background);
  copy.setAttribute("xmlns", element.namespaceURI);
  return new XMLSerializer().serializeToString(copy);
}

/** Offers the view as a file. */
export async function save(element, name, kind) {
  const text = toSvgText(element);
  const vector = new Blob([text], { type: "image/svg+xml" });
  download(
    kind === "svg" ? vector : await toPng(vector, element.viewBox.baseVal),
    `${name}.${kind}`,
  );
}

async function toPng(vector, { width, height }) {
  const address = URL.createObjectURL(vector);
  try {
    const image = new Image();
    image.src = address;
    await image.decode();
    const canvas = html("canvas", { width: Math.ceil(2 * width), height: Math.ceil(2 * height) });
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  } finally {
    URL.revokeObjectURL(address);
  }
}

function download(blob, name) {
  const address = URL.createObjectURL(blob);
  html("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
