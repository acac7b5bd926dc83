// What a job would take, and which settings would make it faster or cheaper.

import { frontierChart } from "../charts/frontier.js";
import { h } from "../dom.js";
import { duration, inColumn, usd } from "../format.js";
import { card } from "../job/overview.js";
import { table } from "../table.js";

export function estimateView(estimate) {
  const { cluster, total_steps, step_s, wall_s, held_s, functions, frontier, assumptions } =
    estimate;
  const priced = estimate.usd !== null;
  const uses = Object.entries(functions).map(([name, spent]) => [
    name,
    ...[spent.held_s, spent.busy_s, spent.idle_s, spent.cold_s].map(inColumn),
    ...(priced ? [usd(spent.usd)] : []),
  ]);
  return h(
    "div",
    {},
    h("h2", {}, "Estimate"),
    h("p", { class: "soft" }, `By simulation, on ${cluster}.`),
    h(
      "div",
      { class: "cards" },
      filled("Time", duration(wall_s), `${total_steps} steps of ${duration(step_s)}`),
      filled(
        "Cost",
        priced ? usd(estimate.usd) : duration(held_s),
        priced
          ? `for ${duration(held_s)} of instances held`
          : "of instances held; prices are unknown",
      ),
    ),
    frontier.length > 0 && frontierView(estimate, frontier),
    table(
      "Instance time by function",
      ["Function", "Held", "Busy", "Idle", "Starting", ...(priced ? ["Cost"] : [])],
      uses,
    ),
    assumptions.length > 0 &&
      h(
        "details",
        {},
        h("summary", {}, "What this rests on"),
        h(
          "ul",
          {},
          assumptions.map((each) => h("li", {}, each)),
        ),
      ),
  );
}

function filled(title, big, small) {
  const made = card(title);
  made.big.append(big);
  made.small.append(small);
  return made.element;
}

function frontierView(estimate, frontier) {
  const all = [estimate, ...frontier];
  const inUsd = all.every((point) => point.usd !== null);
  const [across, seconds] = unit(all.map((point) => point.wall_s));
  const [heldUnit, held] = unit(all.map((point) => point.held_s));
  const place = (point, label) => ({
    label,
    time: point.wall_s / seconds,
    cost: inUsd ? point.usd : point.held_s / held,
  });
  const rows = table(
    "Ways to run it, fastest first; none is both slower and dearer than another",
    [["Settings", "words"], "Time", "Held", ...(inUsd ? ["Cost"] : [])],
    frontier.map((point) => [
      settingsOf(point),
      inColumn(point.wall_s),
      inColumn(point.held_s),
      ...(inUsd ? [usd(point.usd)] : []),
    ]),
  );
  const chart = frontierChart({
    title: "Time against cost",
    points: frontier.map((point) => place(point, settingsOf(point))),
    asked: place(estimate, "as written"),
    across,
    upwards: inUsd ? "USD" : `${heldUnit} held`,
  });
  return h(
    "div",
    {},
    h("section", { class: "card" }, chart.element),
    rows,
    h(
      "p",
      { class: "soft small" },
      "The ring is the job as it is written. ",
      "To run it another way, write the settings of that row into the job.",
    ),
  );
}

function settingsOf(point) {
  const settings = Object.entries(point.settings).map(
    ([name, value]) => `${name}: ${JSON.stringify(value)}`,
  );
  return settings.join(", ") || "as written";
}

function unit(values) {
  const greatest = Math.max(...values);
  if (greatest < 120) return ["s", 1];
  return greatest < 7200 ? ["min", 60] : ["h", 3600];
}
