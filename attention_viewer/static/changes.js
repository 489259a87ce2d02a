// The heads that changed most between two snapshots.

import { html } from "./dom.js";
import { MAPS, headName } from "./heads.js";
import { change } from "./matrix.js";

const MOST_CHANGED = 12;

/**
 * Returns [{map, head, value}] of all maps, the most changed first.
 *
 * Heads of maps whose tokens differ can't be compared and are left out.
 */
export function changedHeads(a, b) {
  const found = [];
  for (const map of Object.values(a.maps)) {
    const other = b.maps[map.name];
    const isAlike = other && other.codes.length === map.codes.length && other.heads === map.heads;
    const spell = (snapshot, name) =>
      snapshot.sequences[name].map(({ piece }) => piece).join("\u0000");
    if (!isAlike || [map.rows, map.columns].some((name) => spell(a, name) !== spell(b, name)))
      continue;
    for (const head of map.allHeads()) {
      const value = change(map.mean([head]), other.mean([head]), map.numRows);
      found.push({ map: map.name, head, value });
    }
  }
  return found.sort((x, y) => y.value - x.value);
}

/** Draws the list; a click selects a head. */
export function drawChangedHeads(changed, state, onSelect) {
  const most = Math.max(0.01, changed[0]?.value ?? 0);
  const isOn = ({ map, head }) =>
    map === state.map && state.heads.length === 1 && String(state.heads[0]) === String(head);
  return html(
    "div",
    { class: "changed" },
    ...changed
      .slice(0, MOST_CHANGED)
      .map((entry) =>
        html(
          "button",
          { class: isOn(entry) ? "row on" : "row", click: () => onSelect(entry.map, [entry.head]) },
          html(
            "span",
            { class: "name" },
            `${MAPS[entry.map]?.name ?? entry.map}: ${headName(entry.head)}`,
          ),
          html(
            "span",
            { class: "bar-line" },
            html("span", { class: "bar", style: `width: ${(100 * entry.value) / most}%` }),
          ),
          html("span", { class: "number" }, entry.value.toFixed(2)),
        ),
      ),
  );
}
