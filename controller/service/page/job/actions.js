// Pause, resume, cancel.

import { post } from "../api.js";
import { h } from "../dom.js";
import { announce, attempt } from "../notices.js";
import { allowed } from "../states.js";
import { ask } from "../dialog.js";

const DONE = {
  pause: "The job will pause.",
  resume: "The job goes on.",
  cancel: "The job was cancelled.",
};

export function actionButtons(model, signal) {
  const refused = h("div");
  const buttons = {
    pause: h("button", { type: "button", onclick: () => act("pause") }, "Pause"),
    resume: h("button", { type: "button", class: "main", onclick: resume }, "Resume"),
    cancel: h("button", { type: "button", class: "danger", onclick: cancel }, "Cancel job"),
  };
  model.addEventListener("job", show, { signal });
  show();
  return h("div", { class: "actions changes" }, buttons.pause, buttons.resume, buttons.cancel, refused);

  function show() {
    const may = allowed(model.job.state);
    for (const [name, button] of Object.entries(buttons)) button.hidden = !may[name];
  }

  async function act(name, body) {
    for (const button of Object.values(buttons)) button.disabled = true;
    const job = await attempt(refused, () => post(`${model.path}/${name}`, body, { signal }));
    for (const button of Object.values(buttons)) button.disabled = false;
    if (!job) return;
    announce(DONE[name]);
    model.changed(job);
  }

  async function cancel() {
    const sure = await ask({
      title: `Cancel ${model.job.name}?`,
      contents: h(
        "p",
        {},
        "It ends at once and cannot go on. ",
        "What its committed steps have left stays: weights, samples, metrics.",
      ),
      yes: "Cancel the job",
      no: "Keep it",
      danger: true,
    });
    if (sure) await act("cancel");
  }

  /** A job with a budget may be given another: it may have paused at its limit. */
  async function resume() {
    const budget = model.job.spec.budget ?? {};
    const limits = ["max_usd", "max_function_seconds"].filter(
      (name) => typeof budget[name] === "number",
    );
    if (!limits.length) return act("resume");
    const inputs = limits.map((name) => budgetInput(name, budget[name]));
    const contents = h(
      "div",
      {},
      h("p", {}, "Its budget may be raised:"),
      inputs.map((each) => each.row),
    );
    const sure = await ask({
      title: `Resume ${model.job.name}?`,
      contents,
      yes: "Resume",
      no: "Not now",
    });
    if (!sure) return;
    const given = limits.map((name, index) => [name, inputs[index].input.valueAsNumber]);
    const same = given.every(([name, value]) => value === budget[name]);
    await act("resume", same ? undefined : { budget: { ...budget, ...Object.fromEntries(given) } });
  }
}

function budgetInput(name, value) {
  const words = { max_usd: "Most USD", max_function_seconds: "Most function-seconds" };
  const input = h("input", { type: "number", min: "0", step: "any", required: true, value });
  return { input, row: h("label", {}, words[name], input) };
}
