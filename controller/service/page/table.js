// Tables that scroll by themselves where the window is narrow.

import { h } from "./dom.js";

/** `columns`: names, or [name, css]; `rows`: arrays of cells (text or nodes), the first of which
 * names the row. */
export function table(caption, columns, rows, { css = "" } = {}) {
  const named = columns.map((column) => (Array.isArray(column) ? column : [column, ""]));
  const heads = named.map(([name, css]) => h("th", { scope: "col", class: css || null }, name));
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "group", "aria-label": caption },
    h(
      "table",
      { class: css || null },
      h("caption", {}, caption),
      h("thead", {}, h("tr", {}, heads)),
      h(
        "tbody",
        {},
        rows.map((cells) => row(cells, named)),
      ),
    ),
  );
}

function row(cells, named) {
  return h(
    "tr",
    {},
    cells.map((cell, index) =>
      h(index ? "td" : "th", { scope: index ? null : "row", class: named[index][1] || null }, cell),
    ),
  );
}
