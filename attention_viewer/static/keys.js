// The keyboard.

export const KEYS = [
  ["← →", "step back and forth"],
  ["Home End", "first and last step"],
  ["space", "play"],
  ["↑ ↓", "previous and next head"],
  ["m", "next kind of attention"],
  ["w", "pieces or words"],
  ["h", "hide ends and punctuation"],
  ["1 – 4", "views"],
];

/** Returns what a key does, or undefined. */
function actionOf(key, app) {
  const { state, store, snapshot } = app;
  const position = store.steps.indexOf(app.at);
  const nextHead = (by) => {
    const heads = snapshot.maps[state.map].allHeads();
    const i = heads.findIndex((head) => String(head) === String(state.heads[0]));
    app.update({ heads: [heads[(i + by + heads.length) % heads.length]] });
  };
  const nextMap = () => {
    const names = Object.keys(snapshot.maps);
    const map = names[(names.indexOf(state.map) + 1) % names.length];
    const { layers, heads } = snapshot.maps[map];
    const kept = state.heads.filter(([layer, head]) => layer < layers && head < heads);
    app.update({ map, heads: kept.length ? kept : [[0, 0]] });
  };
  const actions = {
    ArrowLeft: () => app.goTo(position - 1),
    ArrowRight: () => app.goTo(position + 1),
    Home: () => app.goTo(0),
    End: () => app.goTo(store.steps.length - 1),
    ArrowUp: () => nextHead(-1),
    ArrowDown: () => nextHead(1),
    " ": () => app.play(),
    m: nextMap,
    w: () => app.setOption("words", !state.words),
    h: () => app.setOption("hide", !state.hide),
  };
  Object.keys(app.views).forEach((tab, i) => (actions[i + 1] = () => app.update({ tab })));
  return actions[key];
}

/** Does what the key of an event does, unless it belongs to a field or the browser. */
export function onKey(event, app) {
  const { tagName, type } = event.target;
  const isField =
    tagName === "SELECT" || (tagName === "INPUT" && (type !== "checkbox" || event.key === " "));
  const isButton = tagName === "BUTTON" && event.key === " ";
  if (isField || isButton || event.ctrlKey || event.metaKey || event.altKey) return;
  const action = actionOf(event.key, app);
  if (!action) return;
  event.preventDefault();
  action();
}
