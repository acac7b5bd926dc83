// A job: its head, what it may be asked to do, and a tab for each subject.

import { fill, h, say } from "../dom.js";
import { problemBox } from "../notices.js";
import { statePill } from "../states.js";
import { actionButtons } from "./actions.js";
import { checkpointsTab } from "./checkpoints.js";
import { eventsTab } from "./events.js";
import { logsTab } from "./logs.js";
import { JobModel } from "./model.js";
import { overviewTab } from "./overview.js";
import { plansTab } from "./plans.js";
import { samplesTab } from "./samples.js";
import { specTab } from "./spec.js";
import { usageTab } from "./usage.js";

// A tab is `(place, model, signal, parts)`; `signal` is aborted when it is left.
const TABS = {
  overview: ["Overview", overviewTab],
  samples: ["Samples", samplesTab],
  plans: ["Plans", plansTab],
  usage: ["Usage", usageTab],
  checkpoints: ["Checkpoints", checkpointsTab],
  events: ["Events", eventsTab],
  logs: ["Logs", logsTab],
  spec: ["Spec", specTab],
};

export async function jobView(main, [id, ...parts], signal) {
  const model = await JobModel.open(id, signal);
  const place = h("section");
  const links = Object.entries(TABS).map(([name, [title]]) =>
    h("a", { href: `#/jobs/${model.job.id}/${name}`, "data-tab": name }, title),
  );
  const refused = h("div");
  fill(
    main,
    head(model, signal),
    refused,
    h("nav", { class: "tabs", "aria-label": "About this job" }, links),
    place,
  );
  model.addEventListener("failed", ({ detail }) => {
    if (detail.status !== 0) fill(refused, problemBox(detail));
  });
  let leaving = null;
  open(parts);
  model.start();
  return {
    title: model.job.name,
    moved([other, ...rest]) {
      if (other !== model.job.id) return false;
      open(rest);
      return true;
    },
  };

  function open([name, ...rest]) {
    const shown = Object.hasOwn(TABS, name ?? "") ? name : "overview";
    leaving?.abort();
    leaving = new AbortController();
    for (const link of links) {
      if (link.dataset.tab === shown) current(link);
      else link.removeAttribute("aria-current");
    }
    const [title, tab] = TABS[shown];
    const inside = h("div");
    fill(place, h("h2", { class: "unseen" }, title), inside);
    tab(inside, model, AbortSignal.any([signal, leaving.signal]), rest);
  }
}

/** Mark the tab, and bring it into sight where not all fit. */
function current(link) {
  link.setAttribute("aria-current", "page");
  const { parentElement: row, offsetLeft, offsetWidth } = link;
  row.scrollLeft = offsetLeft - (row.clientWidth - offsetWidth) / 2;
}

function head(model, signal) {
  const pill = h("span", { role: "status" });
  const reason = h("p", { class: "soft reason" });
  const failure = h("div");
  let state = null;
  model.addEventListener("job", show, { signal });
  const element = h(
    "header",
    { class: "job" },
    h("p", { class: "small" }, h("a", { href: "#/jobs" }, "← Jobs")),
    h(
      "div",
      { class: "head" },
      h("h1", {}, model.job.name, " ", pill),
      actionButtons(model, signal),
    ),
    h("code", { class: "id" }, model.job.id),
    reason,
    failure,
  );
  show();
  return element;

  function show() {
    const { job } = model;
    say(reason, job.error ? "" : (job.reason ?? ""));
    if (job.state === state) return;
    state = job.state;
    fill(pill, statePill(state));
    fill(failure, job.error && problemBox({ ...job.error, message: job.error.detail }));
  }
}
