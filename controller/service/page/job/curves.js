// Reward, response length and KL by step, as they come; any other metric on demand.

import { fill, h } from "../dom.js";
import { lineChart } from "../charts/lines.js";

const FIRST = ["reward/mean", "response_length/mean"];
const KL = ["reference/kl", "policy/kl"]; // the first that the job has
const TITLES = {
  "reward/mean": ["Reward", "Mean reward"],
  "response_length/mean": ["Response length", "Tokens, mean", "tokens"],
  "reference/kl": ["KL to the reference", "KL"],
  "policy/kl": ["KL of each update", "KL"],
};

export function curves(model, signal) {
  const choice = h("select", { id: "metric" });
  const names = new Set();
  let read = 0; // steps whose names are known
  const grid = h("div", { class: "charts" });
  const more = chart(() => choice.value, "Chosen metric");
  const shown = [...FIRST.map((name) => chart(() => name, ...TITLES[name])), klChart()];
  fill(
    grid,
    shown.map(({ element }) => element),
  );
  const picker = h(
    "details",
    { class: "more" },
    h("summary", {}, "More metrics"),
    h("div", { class: "row" }, h("label", { for: "metric" }, "Metric"), choice),
    more.element,
  );
  choice.addEventListener("change", more.update);
  model.addEventListener("metrics", update, { signal });
  model.addEventListener("job", () => read || update(), { signal }); // it may end without a step
  update();
  return h("div", {}, grid, picker);

  function update() {
    for (; read < model.metrics.length; read++) {
      for (const name of Object.keys(model.metrics[read].metrics)) names.add(name);
    }
    picker.hidden = !names.size;
    if (choice.options.length !== names.size) {
      const chosen = choice.value || "reward/std";
      fill(
        choice,
        [...names].sort().map((name) => h("option", { value: name }, name)),
      );
      choice.value = names.has(chosen) ? chosen : choice.options[0].value;
    }
    for (const each of [...shown, more]) each.update();
  }

  function klChart() {
    const name = () =>
      KL.find((each) => model.metrics.some((entry) => each in entry.metrics)) ?? KL[1];
    const [title] = TITLES[model.job.spec.algorithm?.kl?.coefficient > 0 ? KL[0] : KL[1]];
    return chart(name, title, "KL");
  }

  function chart(metric, title, name = "Value", unit = "") {
    const points = () =>
      model.metrics
        .filter((entry) => metric() in entry.metrics)
        .map((entry) => [entry.step, entry.metrics[metric()]]);
    const nothing = () => (model.ended ? "no step was committed" : "shown after the first step");
    return lineChart({ title, name, unit, points, nothing });
  }
}
