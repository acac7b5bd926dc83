// A quantity by step, as a line.

import { s } from "../dom.js";
import { number } from "../format.js";
import { table } from "../table.js";
import { domain, labels, scale, ticks } from "./axis.js";
import { figure } from "./figure.js";

const HEIGHT = 190;
const EDGE = { left: 54, right: 12, top: 8, bottom: 24 };
const ROWS = 200; // of the table, the newest

/** `points()` returns [[step, value], ...] in order of their steps. `name`: of the value; `unit`: what
 * follows it in words; `nothing()`: what is said while there is no point. */
export function lineChart({ title, name, unit = "", points, nothing }) {
  let at = null; // index of the point that is read out
  let toX = null;
  const chart = figure({
    title,
    draw,
    step(key) {
      const last = points().length - 1;
      if (last < 0 || key === "ArrowUp" || key === "ArrowDown") return null;
      const from = at ?? last;
      const to = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: last }[key];
      at = Math.min(Math.max(to, 0), last);
      return told(at);
    },
    pointed(x) {
      at = x === null || !toX || !points().length ? null : nearest(x);
      return at === null ? null : told(at);
    },
    asTable: () =>
      table(
        `${title}, newest first`,
        ["Step", name],
        points()
          .slice(-ROWS)
          .reverse()
          .map(([step, value]) => [String(step), number(value)]),
      ),
  });
  return chart;

  function told(index) {
    const [step, value] = points()[index];
    return `step ${step}: ${number(value)}${unit && ` ${unit}`}`;
  }

  function nearest(x) {
    const away = points().map(([step]) => Math.abs(toX(step) - x));
    return away.indexOf(Math.min(...away));
  }

  function draw(width) {
    const all = points();
    if (!all.length) return { height: HEIGHT, shapes: words(nothing(), width), summary: "" };
    if (at !== null) at = Math.min(at, all.length - 1);
    const floor = HEIGHT - EDGE.bottom;
    const steps = [all[0][0], Math.max(all.at(-1)[0], all[0][0] + 1)];
    const values = domain(all.map(([, value]) => value));
    toX = scale(steps, EDGE.left, width - EDGE.right);
    const toY = scale(values, floor, EDGE.top);
    const right = width - EDGE.right;
    const marked = ticks(...values, 4);
    const heights = labels(marked);
    const levels = marked.map((value, n) => [
      s("line", { x1: EDGE.left, x2: right, y1: toY(value), y2: toY(value) }),
      s("text", { class: "y", x: EDGE.left - 6, y: toY(value) + 4 }, heights[n]),
    ]);
    const marks = ticks(...steps, Math.max(2, width / 90))
      .filter((step) => Number.isInteger(step))
      .map((step, n) => mark(n ? String(step) : `step ${step}`, toX(step), floor + 17));
    const shown = thinned(all, toX).map(
      ([step, value]) => `${toX(step).toFixed(1)},${toY(value).toFixed(1)}`,
    );
    const [step, value] = all[at ?? all.length - 1];
    return {
      height: HEIGHT,
      summary: told(at ?? all.length - 1),
      shapes: [
        levels,
        marks,
        s("polyline", { points: shown.join(" ") }),
        at !== null &&
          s("line", { class: "rule", x1: toX(step), x2: toX(step), y1: EDGE.top, y2: floor }),
        s("circle", { cx: toX(step), cy: toY(value), r: at === null ? 3 : 4 }),
      ],
    };
  }
}

/** A step's label; at the left end it would run into the values' labels, and begins there. */
function mark(text, x, y) {
  return s("text", { class: x < EDGE.left + 15 ? "x begin" : "x", x, y }, text);
}

function words(text, width) {
  return [s("text", { class: "x", x: width / 2, y: HEIGHT / 2 }, text)];
}

/** At most the lowest and the highest point of each pixel: what can be seen of many. */
function thinned(points, toX) {
  const kept = [];
  let column = null;
  for (const point of points) {
    const x = Math.round(toX(point[0]));
    if (x !== column?.x) {
      if (column) kept.push(...edges(column.points));
      column = { x, points: [] };
    }
    column.points.push(point);
  }
  return [...kept, ...edges(column.points)];
}

function edges(points) {
  if (points.length < 3) return points;
  const sorted = [...points].sort((a, b) => a[1] - b[1]);
  return [sorted[0], sorted.at(-1)].sort((a, b) => a[0] - b[0]);
}
