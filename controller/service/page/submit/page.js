// Write a job, attach its files, see what it would take, submit it.

import { address, get, newIdempotencyKey, post } from "../api.js";
import { fill, h } from "../dom.js";
import { announce, attempt, emptyBox, loading, problemBox } from "../notices.js";
import { attachments } from "./attachments.js";
import { draft, keepDraft } from "./draft.js";
import { estimateView } from "./estimate.js";
import { QUICK_START } from "./quick_start.js";

const EXAMPLE = `name: my-job
model: {path: …}
dataset: {path: …}
rewards:
  - python: …`;
const MODEL_OF_QUICK_START = "library:quickstart/model";

export function submitView(main, _, signal) {
  const text = h("textarea", {
    id: "job",
    rows: "22",
    spellcheck: "false",
    required: true,
    autocomplete: "off",
    "aria-describedby": "job-help",
    placeholder: EXAMPLE,
  });
  text.value = draft();
  const files = attachments(() => text.value, signal);
  const refused = h("div");
  const estimate = h("div", { "aria-live": "polite" });
  const cluster = h("input", {
    id: "cluster",
    placeholder: "chosen for you",
    autocomplete: "off",
    spellcheck: "false",
  });
  const estimating = h(
    "button",
    { type: "button", onclick: showEstimate },
    "Estimate time and cost",
  );
  const submitting = h("button", { type: "submit", class: "main" }, "Submit job");
  let key = newIdempotencyKey(); // of what is written now: to send it again makes no second job

  text.addEventListener("input", changed);
  const chosen = h("input", {
    type: "file",
    class: "unseen",
    accept: ".yaml,.yml,.json",
    onchange: read,
  });
  fill(
    main,
    h("h1", {}, "Submit a job"),
    h(
      "div",
      { class: "reads-only" },
      emptyBox(
        "Your key may look at jobs, and not submit any.",
        "An administrator can give you one with the scope submit.",
      ),
    ),
    h(
      "form",
      { class: "submit changes", onsubmit: submit },
      h(
        "div",
        { class: "row" },
        h("button", { type: "button", onclick: quickStart }, "Quick start"),
        h("label", { class: "button" }, "Choose a job file", chosen),
      ),
      h("label", { for: "job" }, "Job"),
      text,
      h(
        "p",
        { id: "job-help", class: "soft small" },
        "A job file, YAML or JSON. The quick start fills in one that needs nothing else.",
      ),
      files.element,
      refused,
      h(
        "div",
        { class: "row" },
        submitting,
        estimating,
        h("span", { class: "pair" }, h("label", { for: "cluster" }, "on cluster"), cluster),
      ),
    ),
    estimate,
    models(signal),
  );
  files.update();
  return { title: "Submit a job" };

  function changed() {
    key = newIdempotencyKey();
    keepDraft(text.value);
    fill(estimate); // it was of another job
    files.update();
  }

  function write(job) {
    text.value = job;
    fill(refused);
    changed();
  }

  async function read() {
    const [file] = chosen.files;
    if (!file) return;
    write(await file.text());
    chosen.value = "";
    announce(`${file.name} was read.`);
  }

  async function quickStart() {
    write(QUICK_START);
    announce("The quick start was filled in.");
    const found = await attempt(refused, () => library(signal));
    if (found && !found.some((model) => model.path === MODEL_OF_QUICK_START)) {
      fill(
        refused,
        problemBox({
          title: "This service has no quick start in its library",
          hint: "Choose examples/quickstart.yaml as the job file and attach what it names.",
        }),
      );
    }
  }

  async function submit(event) {
    event.preventDefault();
    if (!complete()) return;
    const headers = { "Idempotency-Key": key };
    const job = await busy(submitting, () => send("v1/jobs", headers));
    if (!job) return;
    keepDraft("");
    announce(`${job.name} was submitted.`);
    location.hash = `#/jobs/${job.id}`;
  }

  async function showEstimate() {
    if (!text.reportValidity() || !complete()) return;
    fill(estimate, loading("Simulating the job …"));
    const found = await busy(estimating, () =>
      send(address("v1/estimates", { cluster: cluster.value.trim() || null })),
    );
    fill(estimate, found && estimateView(found));
  }

  function send(path, headers) {
    const job = files.resolved();
    const type = job.trimStart().startsWith("{") ? "application/json" : "application/yaml";
    return post(path, job, { type, headers, signal });
  }

  async function busy(button, action) {
    button.disabled = true;
    const answer = await attempt(refused, action);
    button.disabled = false;
    return answer;
  }

  function complete() {
    const missing = files.missing();
    if (!missing.length) return true;
    fill(
      refused,
      problemBox({
        title: "Files are missing",
        message: `The job names ${missing.join(", ")}, which the service cannot read.`,
        hint: "Attach them above, or write library:…, checkpoint:…, https://… or a name on the Hub.",
      }),
    );
    return false;
  }
}

function library(signal) {
  return get("v1/models", { limit: 100 }, signal).then((page) => page.data);
}

/** What a job may begin with. */
function models(signal) {
  const list = h("div");
  const element = h("details", {}, h("summary", {}, "Models that a job can begin with"), list);
  element.addEventListener("toggle", async () => {
    if (!element.open) return;
    fill(list, loading());
    const found = await attempt(list, () => library(signal));
    if (!found) return;
    const told = found.map((model) =>
      h("li", {}, h("code", {}, model.path), " ", h("span", { class: "soft" }, model.description)),
    );
    fill(
      list,
      found.length
        ? h("ul", {}, told)
        : h("p", {}, "None is here yet: write a name on the Hub, or attach one."),
    );
  });
  return element;
}
