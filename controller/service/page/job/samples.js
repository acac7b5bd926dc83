// The samples of a step: best first, worst first, with what every token was worth to the model.

import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { attempt, emptyBox, loading } from "../notices.js";
import { sampleCard } from "./sample.js";

const PER_PAGE = 10;

export function samplesTab(place, model, signal, [asked]) {
  const step = h("input", { id: "step", type: "number", min: "1", required: true });
  const order = h(
    "select",
    { id: "order" },
    h("option", { value: "-reward" }, "best first"),
    h("option", { value: "reward" }, "worst first"),
    h("option", { value: "" }, "as they were planned"),
  );
  const heat = h("input", { id: "heat", type: "checkbox" });
  const scale = h(
    "span",
    { class: "scale soft small", hidden: true },
    "certain ",
    h("i", { "aria-hidden": "true" }),
    " unlikely",
  );
  const turn = (by) =>
    h(
      "button",
      { type: "button", class: "quiet", onclick: () => go(Number(step.value) + by) },
      by < 0 ? "← Earlier" : "Later →",
    );
  const [earlier, later] = [turn(-1), turn(1)];
  const of = h("span", { class: "soft" });
  const refused = h("div");
  const list = h("div", { class: "samples" });
  const more = h(
    "button",
    { type: "button", class: "more", hidden: true, onclick: add },
    "More samples",
  );
  const form = h(
    "div",
    { class: "row" },
    h("span", { class: "pair" }, h("label", { for: "step" }, "Step"), step, of),
    h("span", { class: "pair" }, earlier, later),
    h("span", { class: "pair" }, h("label", { for: "order" }, "Order"), order),
    h("label", {}, heat, " Token log-probs"),
    scale,
  );
  let last = null; // id of the last sample shown
  let loads = 0; // an answer that was overtaken is not shown

  fill(place, form, refused, list, more);
  for (const input of [order, heat]) input.addEventListener("change", load);
  step.addEventListener("change", () => step.reportValidity() && go(step.valueAsNumber));
  model.addEventListener("metrics", known, { signal });
  known();

  function known() {
    const steps = model.steps();
    const newest = steps.at(-1);
    if (!newest) {
      form.hidden = true;
      return fill(
        list,
        emptyBox("No step has been committed yet.", "Its samples can be read as soon as one is."),
      );
    }
    form.hidden = false;
    const fresh = !step.max;
    step.max = newest;
    fill(of, ` of ${newest}`);
    if (fresh) show(Number(asked) || newest);
    else bound();
  }

  function go(to) {
    const shown = Math.min(Math.max(Math.round(to), 1), Number(step.max));
    history.replaceState(null, "", `#/jobs/${model.job.id}/samples/${shown}`);
    show(shown);
  }

  function show(shown) {
    step.value = shown;
    bound();
    load();
  }

  function bound() {
    earlier.disabled = step.valueAsNumber <= 1;
    later.disabled = step.valueAsNumber >= Number(step.max);
  }

  function load() {
    last = null;
    more.hidden = true;
    scale.hidden = !heat.checked;
    fill(list, loading());
    return add();
  }

  async function add() {
    const number = ++loads;
    const query = {
      step: step.value,
      sort: order.value || null,
      tokens: heat.checked ? "true" : null,
      after: last,
      limit: PER_PAGE,
    };
    const page = await attempt(refused, () => get(`${model.path}/rollouts`, query, signal));
    if (number !== loads) return;
    if (!last) fill(list);
    if (!page) return;
    list.append(...page.data.map(sampleCard));
    last = page.data.at(-1)?.id ?? last;
    more.hidden = !page.has_more;
    if (!last) fill(list, emptyBox("This step has no samples."));
  }
}
