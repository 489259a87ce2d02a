// The view in the address, so that a link restores it; and TensorBoard's theme and reload signal.
//
// In TensorBoard the page is a frame: the address bar, and "#attention&p.attention.step=..." in it,
// belong to the parent. A frame in someone else's page may not look at its parent; then it uses its
// own address.

const PREFIX = "p.attention.";

function parentWindow() {
  try {
    void window.parent.location.hash; // throws if the parent is of another origin
    return window.parent;
  } catch {
    return window;
  }
}

const isFramed = () => parentWindow() !== window;

/** Returns {name: value} of the address. */
export function readLocation() {
  const found = {};
  for (const part of parentWindow().location.hash.slice(1).split("&")) {
    const [name, value] = part.split("=");
    if (value === undefined) continue;
    try {
      const key = decodeURIComponent(name);
      if (key.startsWith(PREFIX)) found[key.slice(PREFIX.length)] = decodeURIComponent(value);
    } catch {
      // Not ours: a % that escapes nothing.
    }
  }
  return found;
}

/** Returns the address that restores a view. */
export function linkTo(values) {
  const { location } = parentWindow();
  const others = location.hash
    .slice(1)
    .split("&")
    .filter((part) => part && !part.startsWith(PREFIX));
  const ours = Object.entries(values).map(
    ([name, value]) => `${PREFIX}${name}=${encodeURIComponent(value)}`,
  );
  return `${location.href.split("#")[0]}#${[...others, ...ours].join("&")}`;
}

let writing;

/** Puts a view into the address, without a step in the browser's history. */
export function writeLocation(values) {
  // Browsers slow a page down that changes its address at every move of a slider.
  clearTimeout(writing);
  writing = setTimeout(() => write(values), 200);
}

function write(values) {
  const target = parentWindow();
  if (isFramed() && !target.location.hash.startsWith("#attention")) return; // another tab is shown
  try {
    target.history.replaceState(target.history.state, "", linkTo(values));
  } catch {
    // A page in a string (srcdoc) has no address.
  }
}

/** Keeps the document's theme that of TensorBoard, or of the system; calls back on a change. */
export function followTheme(onChange) {
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const body = isFramed() ? parentWindow().document.body : null;
  const isTensorBoard = body && parentWindow().document.querySelector("tb-webapp");
  const apply = () => {
    const isDark = isTensorBoard ? body.classList.contains("dark-mode") : system.matches;
    const name = isDark ? "dark" : "light";
    if (document.documentElement.dataset.theme === name) return;
    document.documentElement.dataset.theme = name;
    onChange();
  };
  apply();
  system.addEventListener("change", apply);
  if (isTensorBoard) new MutationObserver(apply).observe(body, { attributeFilter: ["class"] });
}

/** Calls back when TensorBoard has reloaded its data. */
export function onReload(callback) {
  if (window.parent === window) return;
  const channel = new MessageChannel();
  channel.port1.onmessage = ({ data }) => {
    const { type, id, isReply } = JSON.parse(data);
    if (isReply) return;
    if (type === "experimental.DataReloaded") callback();
    channel.port1.postMessage(
      JSON.stringify({ type, id, payload: null, error: null, isReply: true }),
    );
  };
  window.parent.postMessage("experimental.bootstrap", "*", [channel.port2]);
}
