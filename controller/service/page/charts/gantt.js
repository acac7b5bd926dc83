// Function instances over time, coloured by what they do.

import { h, s } from "../dom.js";
import { clock, duration, inColumn, number } from "../format.js";
import { table } from "../table.js";
import { scale, ticks } from "./axis.js";
import { figure } from "./figure.js";
import { lanes } from "./lanes.js";

const EDGE = { left: 68, right: 12, top: 4, bottom: 24 };
const GAP = 6; // between functions
const FEW = 24; // lanes that get a comfortable height
const WORDS = { busy: "busy", idle: "idle", cold: "starting" };

export function legend() {
  const entries = Object.entries(WORDS).map(([css, word]) =>
    h("li", {}, h("i", { class: css }), word),
  );
  return h("ul", { class: "legend", "aria-hidden": "true" }, entries);
}

/** `spans()` returns what is known; `window()` the moments [begin, end] (Unix seconds) to show. */
export function gantt({ title, spans, window }) {
  let at = null; // [lane, bar] that is read out
  let known = null; // lanes and the moments shown: made when there is news, not for each drawing
  let drawn = { rows: [], toX: () => 0 };
  const chart = figure({
    title,
    draw,
    step(key) {
      const { rows } = drawn;
      if (!rows.length) return null;
      const [lane, bar] = at ?? [0, rows[0].bars.length];
      const rowNow = Math.min(
        Math.max(lane + ({ ArrowUp: -1, ArrowDown: 1 }[key] ?? 0), 0),
        rows.length - 1,
      );
      const last = rows[rowNow].bars.length - 1;
      const barNow = { ArrowLeft: bar - 1, ArrowRight: bar + 1, Home: 0, End: last }[key] ?? bar;
      at = [rowNow, Math.min(Math.max(barNow, 0), last)];
      return told();
    },
    pointed(x, y) {
      at = x === null ? null : under(x, y);
      return at && told();
    },
    asTable: () =>
      table(
        title,
        ["Instance", ["Function", "name"], "Busy", "Idle", "Starting", "Held"],
        byInstance(spans()),
      ),
  });
  return { element: chart.element, update };

  function update() {
    known = null;
    chart.update();
  }

  function look() {
    const [begin, end] = window();
    return { begin, end, rows: placed(lanes(spans(), end), begin) };
  }

  function told() {
    const bar = drawn.rows[at[0]]?.bars[at[1]];
    if (!bar) return null;
    const lasting = `${duration(bar.end - bar.start_at)}${bar.goesOn ? " so far" : ""}`;
    return `${bar.instance}: ${WORDS[bar.phase]} ${lasting}, from ${clock(bar.start_at)}`;
  }

  function under(x, y) {
    const lane = drawn.rows.findIndex((row) => y >= row.y && y <= row.y + row.height);
    if (lane < 0) return null;
    const bar = drawn.rows[lane].bars.findIndex(
      ({ start_at, end }) => x >= drawn.toX(start_at) && x <= drawn.toX(end),
    );
    return bar < 0 ? null : [lane, bar];
  }

  function draw(width) {
    const { begin, end, rows } = (known ??= look());
    const toX = scale([begin, end], EDGE.left, width - EDGE.right);
    drawn = { rows, toX };
    const floor = rows.length ? rows.at(-1).y + rows.at(-1).height + 4 : 60;
    const summary = rows.length
      ? `${rows.length} at once at most, over ${duration(end - begin)}`
      : "no instance was held yet";
    return {
      height: floor + EDGE.bottom,
      summary,
      shapes: [
        time(begin, end, toX, floor, width),
        rows.map((row, index) => [
          row.first &&
            s(
              "text",
              { class: "y", x: EDGE.left - 8, y: row.y + row.height / 2 + 4 },
              row.function,
            ),
          drawable(row, toX).map((bar) => rect(bar, row)),
          at?.[0] === index && rect(row.bars[at[1]], row, " marked"),
        ]),
      ],
    };

    function rect(bar, { y, height }, marked = "") {
      const left = Math.max(toX(bar.start_at), EDGE.left);
      const wide = Math.max(toX(bar.end) - left, 0.7);
      return s("rect", {
        class: bar.phase + marked,
        x: left,
        y,
        width: wide,
        height,
      });
    }
  }
}

/** A lane's bars; of those that end in the same pixel the first, up to where the last ends. */
function drawable({ bars }, toX) {
  const drawn = [];
  for (const bar of bars) {
    const column = Math.round(toX(bar.end));
    if (drawn.at(-1)?.column === column) drawn.at(-1).end = bar.end;
    else drawn.push({ ...bar, column });
  }
  return drawn;
}

/** Lanes with their places; what ended before `begin` is left out. */
function placed(found, begin) {
  const seen = found
    .map((lane) => ({ ...lane, bars: lane.bars.filter((bar) => bar.end > begin) }))
    .filter((lane) => lane.bars.length);
  const height = seen.length > FEW ? 7 : 14;
  let y = EDGE.top;
  return seen.map((lane, index) => {
    const first = index === 0 || seen[index - 1].function !== lane.function;
    if (first && index) y += GAP;
    const row = { ...lane, first, y, height };
    y += height + (seen.length > FEW ? 1 : 3);
    return row;
  });
}

function time(begin, end, toX, floor, width) {
  const long = end - begin;
  const [divisor, unit] = long < 180 ? [1, "s"] : long < 3 * 3600 ? [60, "min"] : [3600, "h"];
  const marks = ticks(0, long / divisor, Math.max(2, width / 110));
  return marks.map((mark, index) => {
    const x = toX(begin + mark * divisor);
    const label = index === marks.length - 1 ? `${number(mark)} ${unit}` : number(mark);
    return [
      s("line", { x1: x, x2: x, y1: 0, y2: floor }),
      s("text", { class: x > width - 40 ? "x end" : "x", x, y: floor + 17 }, label),
    ];
  });
}

function byInstance(spans) {
  const now = Date.now() / 1000;
  const found = new Map();
  for (const { instance, function: name, phase, start_at, end_at } of spans) {
    if (!found.has(instance)) found.set(instance, { name, busy: 0, idle: 0, cold: 0 });
    found.get(instance)[phase] += (end_at ?? now) - start_at;
  }
  return [...found].map(([instance, { name, busy, idle, cold }]) => [
    instance,
    name,
    ...[busy, idle, cold, busy + idle + cold].map(inColumn),
  ]);
}
