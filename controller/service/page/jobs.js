// The tenant's jobs, newest first, kept up to date.

import { get } from "./api.js";
import { fill, h, say } from "./dom.js";
import { ago, clock, duration, number, usd } from "./format.js";
import { emptyBox, loading, problemBox } from "./notices.js";
import { statePill } from "./states.js";
import { repeat } from "./wait.js";

const EVERY_MS = 3000;
const PER_PAGE = 20;
const COLUMNS = ["Job", "State", "Progress", "Reward", "Cost", "Submitted"];

export function jobsView(main, signal) {
  const rows = new Map();
  const body = h("tbody", { role: "rowgroup" });
  const list = h("div", {}, loading());
  const refused = h("div");
  const older = h("button", { type: "button", class: "more", hidden: true }, "Older jobs");
  let pages = 1;

  fill(
    main,
    h(
      "div",
      { class: "head" },
      h("h1", {}, "Jobs"),
      h("a", { class: "button main changes", href: "#/submit" }, "Submit a job"),
    ),
    refused,
    list,
    older,
  );
  older.addEventListener("click", async () => {
    pages += 1;
    older.disabled = true;
    await load().catch(failed);
    older.disabled = false;
  });
  repeat(load, EVERY_MS, signal, failed);
  return { title: "Jobs" };

  async function load() {
    const jobs = [];
    let more = true;
    for (let page = 0; page < pages && more; page++) {
      const query = { limit: PER_PAGE, after: jobs.at(-1)?.id };
      const found = await get("v1/jobs", query, signal);
      jobs.push(...found.data);
      more = found.has_more;
    }
    fill(refused);
    show(jobs);
    older.hidden = !more;
  }

  function show(jobs) {
    if (!jobs.length) return void fill(list, nothingYet());
    if (!body.isConnected) fill(list, frame(body));
    const ids = new Set(jobs.map((job) => job.id));
    for (const [id, row] of rows) {
      if (ids.has(id)) continue;
      row.element.remove();
      rows.delete(id);
    }
    jobs.forEach((job, index) => {
      if (!rows.has(job.id)) rows.set(job.id, jobRow(job));
      const { element, update } = rows.get(job.id);
      update(job);
      if (body.children[index] !== element)
        body.insertBefore(element, body.children[index] ?? null);
    });
  }

  function failed(error) {
    // Of a service that is away the page's head tells, unless there is nothing else to be seen.
    if (error.status !== 0) fill(refused, problemBox(error));
    else if (!body.isConnected) fill(list, problemBox(error));
  }
}

function nothingYet() {
  return emptyBox("No job has been submitted yet.", [
    h(
      "span",
      { class: "changes" },
      h("a", { href: "#/submit" }, "Submit one"),
      ": the quick start takes a minute.",
    ),
  ]);
}

// The roles are said again because narrow windows show rows as cards, and then browsers forget
// that this is a table.
function frame(body) {
  return h(
    "table",
    { class: "jobs", role: "table" },
    h("caption", { class: "unseen" }, "Jobs, newest first"),
    h(
      "thead",
      { role: "rowgroup" },
      h(
        "tr",
        { role: "row" },
        COLUMNS.map((name) => h("th", { scope: "col", role: "columnheader" }, name)),
      ),
    ),
    body,
  );
}

function jobRow(job) {
  const cells = COLUMNS.map((name, index) =>
    h(index ? "td" : "th", {
      role: index ? "cell" : "rowheader",
      scope: index ? null : "row",
      "data-name": name,
    }),
  );
  const [name, state, progress, reward, cost, age] = cells;
  const bar = h("progress", { max: 1, value: 0, "aria-label": "Steps done" });
  const steps = h("span");
  fill(name, h("a", { href: `#/jobs/${job.id}` }, job.name), h("code", { class: "id" }, job.id));
  fill(progress, bar, steps);
  return { element: h("tr", { role: "row" }, cells), update };

  function update({ state: now, reason, progress: done, created_at }) {
    if (state.dataset.state !== now) {
      state.dataset.state = now;
      fill(state, statePill(now));
    }
    state.title = reason ?? "";
    bar.value = done.total_steps ? done.steps_done / done.total_steps : 0;
    bar.hidden = !done.total_steps;
    say(steps, done.total_steps ? `${done.steps_done} of ${done.total_steps} steps` : "not begun");
    say(reward, done.reward === null ? "–" : number(done.reward));
    say(cost, costOf(done.spent));
    say(age, ago(created_at));
    age.title = clock(created_at);
  }
}

/** Money where prices are known, else what was held. */
function costOf(spent) {
  if (!spent.held_s) return "–";
  return spent.usd === null ? `${duration(spent.held_s)} held` : usd(spent.usd);
}
