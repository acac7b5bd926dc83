// The frame of every chart: a title, what the pointer or the keyboard is at in words, the drawing,
// and the same as a table. The drawing is made anew when its width changes.

import { fill, h, s, say } from "../dom.js";

/** `draw(width)` returns {height, shapes, summary} (no summary: nothing is there yet); `step(key)` moves what is read out by an arrow
 * key and `pointed(x, y)` by the pointer, in pixels (null: it left); both return the words, or null
 * for none. `asTable()` returns a table; without it, the page has one already. */
export function figure({ title, draw, step, pointed, asTable }) {
  const readout = h("output", { class: "readout" });
  const svg = s("svg", { "aria-hidden": "true" });
  // A slider: the one role with which screen readers hand on arrow keys and speak what is said.
  const host = h("div", {
    class: "plot",
    tabindex: "0",
    role: "slider",
    "aria-label": title,
    "aria-valuenow": "0",
  });
  host.append(svg);
  const values = h("details", { class: "values" }, h("summary", {}, "Values as a table"));
  const element = h(
    "figure",
    {},
    h("figcaption", {}, h("h3", {}, title), readout),
    host,
    asTable && values,
  );
  let width = 0;
  let frame = 0;
  let held = false; // the pointer or the keyboard is at something

  host.addEventListener("keydown", (event) => {
    const told = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"].includes(
      event.key,
    )
      ? step(event.key)
      : null;
    if (told === null) return;
    event.preventDefault();
    read(told);
  });
  host.addEventListener("pointermove", ({ clientX, clientY }) => {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(() => {
      const box = host.getBoundingClientRect();
      read(pointed(clientX - box.left, clientY - box.top));
    });
  });
  for (const left of ["pointerleave", "blur"]) {
    host.addEventListener(left, () => {
      cancelAnimationFrame(frame);
      read(pointed(null, null));
    });
  }
  values.addEventListener("toggle", showTable);
  new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (now && now !== width) redraw((width = now));
  }).observe(host);

  return { element, update: () => width && redraw() };

  function redraw() {
    const { height, shapes, summary } = draw(width);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("width", width);
    svg.setAttribute("height", height);
    fill(svg, shapes);
    if (!held) tell(summary);
    values.hidden = !summary; // there is nothing to tell
    showTable();
  }

  function read(told) {
    held = told !== null;
    redraw();
    if (held) tell(told);
  }

  function tell(text) {
    say(readout, text);
    host.setAttribute("aria-valuetext", text);
  }

  function showTable() {
    if (values.open) fill(values, values.firstElementChild, asTable());
  }
}
