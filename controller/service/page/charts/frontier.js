// Time against cost: ways to run a job of which none is both slower and dearer than another.

import { s } from "../dom.js";
import { number } from "../format.js";
import { domain, labels, scale, ticks } from "./axis.js";
import { figure } from "./figure.js";

const HEIGHT = 260;
const LEAST_SPAN = 0.1; // of an axis, as a share of its greatest value
const EDGE = { left: 64, right: 18, top: 14, bottom: 40 };

/** `points`: [{time, cost, label}] by time, in units that `across` and `upwards` name; `asked`:
 * the same for the job as it was written. The page shows them as a table, too. */
export function frontierChart({ title, points, asked, across, upwards }) {
  let at = null;
  let places = [];
  return figure({
    title,
    draw,
    step(key) {
      if (!points.length || key === "ArrowUp" || key === "ArrowDown") return null;
      const from = at ?? -1;
      const to = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: points.length - 1 }[
        key
      ];
      at = Math.min(Math.max(to, 0), points.length - 1);
      return told(points[at]);
    },
    pointed(x, y) {
      if (x === null) at = null;
      else {
        const away = places.map(([px, py]) => Math.hypot(px - x, py - y));
        const nearest = away.indexOf(Math.min(...away));
        at = away[nearest] < 40 ? nearest : null;
      }
      return at === null ? null : told(points[at]);
    },
  });

  function told({ time, cost, label }) {
    return `${label}: ${number(time)} ${across}, ${number(cost)} ${upwards}`;
  }

  function draw(width) {
    const all = [...points, asked];
    const times = domain(
      all.map((point) => point.time),
      LEAST_SPAN,
    );
    const costs = domain(
      all.map((point) => point.cost),
      LEAST_SPAN,
    );
    const floor = HEIGHT - EDGE.bottom;
    const toX = scale(times, EDGE.left, width - EDGE.right);
    const toY = scale(costs, floor, EDGE.top);
    places = points.map(({ time, cost }) => [toX(time), toY(cost)]);
    const levels = ticks(...costs, 4);
    const marks = ticks(...times, Math.max(2, width / 110));
    const [heights, moments] = [labels(levels), labels(marks)];
    return {
      height: HEIGHT,
      summary: told(asked),
      shapes: [
        levels.map((value, n) => [
          s("line", { x1: EDGE.left, x2: width - EDGE.right, y1: toY(value), y2: toY(value) }),
          s("text", { class: "y", x: EDGE.left - 6, y: toY(value) + 4 }, heights[n]),
        ]),
        marks.map((value, n) =>
          s("text", { class: "x", x: toX(value), y: floor + 17 }, moments[n]),
        ),
        s(
          "text",
          { class: "x", x: (EDGE.left + width - EDGE.right) / 2, y: floor + 35 },
          `time of the job, ${across}`,
        ),
        s("text", { class: "name", x: 4, y: 10 }, upwards),
        s("polyline", { points: places.map((place) => place.join(",")).join(" ") }),
        s("circle", { class: "asked", cx: toX(asked.time), cy: toY(asked.cost), r: 7 }),
        places.map(([cx, cy], index) => s("circle", { cx, cy, r: index === at ? 6 : 4 })),
      ],
    };
  }
}
