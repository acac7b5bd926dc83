// How a job stands: numbers, curves, instances over time, states.

import { fill, h, say } from "../dom.js";
import { gantt, legend } from "../charts/gantt.js";
import { clock, duration, number, percent, whole } from "../format.js";
import { statePill } from "../states.js";
import { table } from "../table.js";
import { repeat } from "../wait.js";
import { budgetCard } from "./budget.js";
import { curves } from "./curves.js";

const SPANS_EVERY_MS = 3000;

export function overviewTab(place, model, signal) {
  const states = h("div");
  fill(
    place,
    numbers(model, signal),
    curves(model, signal),
    instances(model, signal),
    h("h2", {}, "States"),
    states,
  );
  model.addEventListener("job", showStates, { signal });
  showStates();

  function showStates() {
    const entered = Object.entries(model.job.states).sort(([, a], [, b]) => a.at - b.at);
    const rows = entered.map(([state, { at, reason }]) => [
      statePill(state),
      clock(at),
      reason ?? "–",
    ]);
    fill(
      states,
      table(
        "When it last entered each state, and why",
        ["State", ["Since", "name"], ["Reason", "words"]],
        rows,
      ),
    );
  }
}

function numbers(model, signal) {
  const cards = {
    progress: card("Progress"),
    reward: card("Reward now"),
    time: card("Time"),
    instances: card("Instances"),
  };
  const bar = h("progress", { max: 1, value: 0, "aria-label": "Steps done" });
  cards.progress.element.append(bar);
  const budget = budgetCard(model);
  const show = () => {
    const { progress, forecast, state } = model.job;
    const total = progress.total_steps;
    say(
      cards.progress.big,
      total ? `${progress.steps_done} of ${total}` : whole(progress.steps_done),
    );
    say(
      cards.progress.small,
      `steps${state === "running" && progress.phase ? `, now ${progress.phase}` : ""}`,
    );
    bar.value = total ? progress.steps_done / total : 0;
    bar.hidden = !total;
    const rewards = model.metrics.map((entry) => entry.metrics["reward/mean"]);
    const now = rewards.at(-1) ?? progress.reward;
    say(cards.reward.big, now == null ? "–" : number(now));
    say(cards.reward.small, sofar(model, rewards));
    say(cards.time.big, duration(progress.wall_s));
    say(cards.time.small, ending(model.job, forecast));
    say(cards.instances.big, whole(progress.instances));
    const { held_s, busy_s } = progress.spent;
    say(
      cards.instances.small,
      held_s ? `busy ${percent(busy_s / held_s)} of the time held` : "none held yet",
    );
    budget.show();
  };
  model.addEventListener("job", show, { signal });
  model.addEventListener("metrics", show, { signal });
  show();
  const elements = Object.values(cards).map(({ element }) => element);
  return h("div", { class: "cards" }, elements, budget.element);
}

/** What the last step's reward is to be compared with. */
function sofar(model, rewards) {
  const none = model.ended ? "no step was committed" : "after the first step";
  const first = rewards.length > 1 ? `${number(rewards[0])} in step 1` : "mean of the last step";
  return [rewards.length ? first : none, heldOut(model.evaluations)].filter(Boolean).join("; ");
}

/** How the held-out set was answered, before and now. */
function heldOut(evaluations) {
  if (!evaluations.length) return "";
  const [before, now] = [evaluations[0], evaluations.at(-1)].map(({ accuracy }) =>
    percent(accuracy),
  );
  return `held-out set ${evaluations.length > 1 ? `${before} → ${now}` : now} right`;
}

function ending(job, forecast) {
  if (job.finished_at) return `ended ${clock(job.finished_at)}`;
  if (!forecast) return "forecast after the first step";
  const whole = `about ${duration(forecast.wall_s)} in all`;
  return forecast.finish_at ? `${whole}, until ${clock(forecast.finish_at)}` : whole;
}

export function card(title) {
  const big = h("p", { class: "big" });
  const small = h("p", { class: "soft small" });
  return { big, small, element: h("section", { class: "card" }, h("h2", {}, title), big, small) };
}

function instances(model, signal) {
  const choice = h(
    "select",
    { id: "window" },
    h("option", { value: "all" }, "the whole job"),
    h("option", { value: "300" }, "the last 5 minutes"),
    h("option", { value: "60" }, "the last minute"),
  );
  const chart = gantt({
    title: "Function instances over time",
    spans: () => model.spans,
    window: () => shownWindow(model, choice.value),
  });
  choice.addEventListener("change", chart.update);
  model.addEventListener("spans", chart.update, { signal });
  repeat(load, SPANS_EVERY_MS, signal, () => {}); // the page's head tells what does not answer
  return h(
    "section",
    { class: "card instances" },
    chart.element,
    h("div", { class: "row" }, h("label", { for: "window" }, "Show"), choice, legend()),
  );

  async function load() {
    await model.refreshSpans();
    chart.update(); // what goes on has become longer
    return !(model.ended && model.spans.every((span) => span.end_at !== null));
  }
}

function shownWindow(model, chosen) {
  const ends = model.spans.map((span) => span.end_at ?? Date.now() / 1000);
  const end = ends.reduce((a, b) => Math.max(a, b), model.job.created_at + 1);
  const begin = model.spans.reduce((a, span) => Math.min(a, span.start_at), end - 1);
  return [chosen === "all" ? begin : Math.max(begin, end - Number(chosen)), end];
}
