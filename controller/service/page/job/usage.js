// What was held and what it cost, by function and by step.

import { get } from "../api.js";
import { legend } from "../charts/gantt.js";
import { fill, h } from "../dom.js";
import { duration, inColumn, percent, usd } from "../format.js";
import { attempt, loading, problemBox } from "../notices.js";
import { table } from "../table.js";
import { coalesced } from "../wait.js";

const SOON_MS = 500;
const PER_PAGE = 20;
const COLUMNS = ["Held", "Busy", "Idle", "Starting", "Shares"];

export function usageTab(place, model, signal) {
  const total = h("div", {}, loading());
  const steps = h("div");
  const refused = h("div");
  const more = h(
    "button",
    { type: "button", class: "more", hidden: true, onclick: add },
    "More steps",
  );
  const shown = [];
  const failed = (error) => fill(refused, problemBox(error));
  const load = coalesced(loadTotal, SOON_MS, signal, failed);
  fill(place, refused, total, steps, more);
  for (const news of ["job", "metrics"]) model.addEventListener(news, load, { signal });
  load();
  add();

  async function loadTotal() {
    const usage = await get(`${model.path}/usage`, { limit: 1 }, signal);
    const priced = usage.total.usd !== null;
    const rows = Object.entries(usage.functions).map(([name, spent]) => [
      name,
      ...cells(spent, priced),
    ]);
    const over = `Over ${duration(usage.wall_s)} in which the job ran.`;
    fill(
      total,
      table(
        "Instance time by function",
        ["Function", ...columns(priced)],
        [...rows, ["all", ...cells(usage.total, priced)]],
        { css: "totalled" },
      ),
      h(
        "div",
        { class: "row" },
        h("span", { class: "soft" }, priced ? over : `${over} Prices are unknown.`),
        legend(),
      ),
    );
    more.hidden = shown.length >= model.metrics.length;
  }

  async function add() {
    const query = { limit: PER_PAGE, after: shown.at(-1)?.id };
    const page = await attempt(refused, () => get(`${model.path}/usage`, query, signal));
    if (!page) return;
    shown.push(...page.data);
    more.hidden = shown.length >= model.metrics.length;
    if (!shown.length) return;
    const priced = shown.some(({ functions }) =>
      Object.values(functions).some((spent) => spent.usd !== null),
    );
    const rows = shown.flatMap(({ step, functions }) =>
      Object.entries(functions).map(([name, spent], index) => [
        // said in each row, seen in the first
        h("span", { class: index ? "unseen" : null }, String(step)),
        name,
        ...cells(spent, priced),
      ]),
    );
    const heads = ["Step", ["Function", "name"], ...columns(priced)];
    fill(steps, table("Instance time by step and function", heads, rows));
  }
}

function columns(priced) {
  return priced ? [...COLUMNS, "Cost"] : COLUMNS;
}

function cells({ held_s, busy_s, idle_s, cold_s, usd: cost }, priced) {
  const times = [held_s, busy_s, idle_s, cold_s].map(inColumn);
  const bar = shares(held_s, { busy: busy_s, idle: idle_s, cold: cold_s });
  return priced ? [...times, bar, usd(cost)] : [...times, bar];
}

function shares(held, phases) {
  if (!held) return "–";
  const bars = Object.entries(phases).map(([name, seconds]) =>
    h("i", { class: name, style: { width: `${(100 * seconds) / held}%` } }),
  );
  return h(
    "span",
    { class: "share", role: "img", "aria-label": `busy ${percent(phases.busy / held)}` },
    bars,
  );
}
