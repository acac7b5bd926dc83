// Why each step's rollout ran as it did. `rlhfless explain` says the same in a terminal.

import { pages } from "../api.js";
import { fill, h } from "../dom.js";
import { duration, many } from "../format.js";
import { emptyBox, loading, problemBox } from "../notices.js";
import { table } from "../table.js";
import { coalesced } from "../wait.js";

const NEAREST = 12; // alternatives shown: those with the lowest scores, and the chosen one
const SOON_MS = 300;
const SHOWN = 100;

export function plansTab(place, model, signal) {
  const list = h("div", {}, loading());
  const plans = [];
  const failed = (error) => fill(list, problemBox(error));
  const load = coalesced(loadNow, SOON_MS, signal, failed);
  fill(
    place,
    h(
      "p",
      { class: "soft" },
      "What the controller chose for each step's rollout, and what came of it; the newest first.",
    ),
    list,
  );
  model.addEventListener("metrics", load, { signal });
  load();

  async function loadNow() {
    let fresh = [];
    for await (const page of pages(`${model.path}/plans`, {}, signal, plans.at(-1)?.id))
      fresh.push(...page);
    fresh = fresh.filter((plan) => plan.step > (plans.at(-1)?.step ?? 0));
    plans.push(...fresh);
    if (!plans.length) {
      return fill(
        list,
        emptyBox("No step has been committed yet.", "Its plan is told as soon as one is."),
      );
    }
    if (plans.length === fresh.length) fill(list);
    for (const plan of fresh) list.prepend(entry(plan));
    while (list.children.length > SHOWN) list.lastChild.remove();
  }
}

function entry({ step, plan }) {
  if (!plan.actors) {
    return h(
      "p",
      { class: "card plan" },
      h("strong", {}, `Step ${step}`),
      ": every sample was there when the step was taken over.",
    );
  }
  const details = h(
    "details",
    { class: "plan" },
    h(
      "summary",
      {},
      h("strong", {}, `Step ${step}:`),
      ` ${many(plan.actors, "actor")}, ${plan.strategy}`,
      plan.outcome && h("span", { class: "soft" }, ` · rollout ${duration(plan.outcome.seconds)}`),
      h("span", { class: "why" }, plan.reason),
    ),
  );
  details.addEventListener("toggle", () => details.append(...more(plan)), { once: true });
  return details;
}

function more(plan) {
  const parts = [];
  const ranked = alternatives(plan);
  if (ranked.length) {
    const heads = ["Assignment", "Actors", "Seconds", "Function-s", "Score"];
    parts.push(
      table(
        "What was weighed; the lowest score that is fast enough is chosen",
        heads,
        ranked.map((each) => [
          [each.strategy, each.chosen && h("span", { class: "pill chosen" }, "chosen")],
          String(each.actors),
          each.seconds.toFixed(3),
          each.function_seconds.toFixed(3),
          each.score.toFixed(4),
        ]),
      ),
    );
  }
  if (plan.prefix?.reason)
    parts.push(h("p", {}, h("strong", {}, "Shared prompts: "), plan.prefix.reason));
  if (plan.outcome) parts.push(h("p", {}, h("strong", {}, "Outcome: "), outcome(plan.outcome)));
  return parts;
}

/** The lowest scores and the chosen one; ways that come to the same are one. */
function alternatives(plan) {
  const scored = (plan.alternatives ?? []).filter((each) => each.score !== null);
  scored.sort((a, b) => Number(b.chosen) - Number(a.chosen) || a.score - b.score);
  const distinct = new Map();
  for (const each of scored) {
    const same = [
      each.actors,
      each.strategy,
      each.seconds.toFixed(3),
      each.score.toFixed(4),
    ].join();
    if (!distinct.has(same)) distinct.set(same, each);
  }
  const shown = [...distinct.values()].slice(0, NEAREST); // the chosen one is the first
  return shown.sort((a, b) => a.actors - b.actors || a.score - b.score);
}

function outcome({ seconds, predicted_s, moved, released }) {
  const predicted = predicted_s == null ? "" : `, ${duration(predicted_s)} predicted`;
  const changes = `${many(moved, "sample")} moved, ${many(released, "instance")} let go early`;
  return `rollout ${duration(seconds)}${predicted}; ${changes}.`;
}
