// Models that the job has left: files to download, and a name under which other jobs begin.

import { pages, send } from "../api.js";
import { fill, h, say } from "../dom.js";
import { bytes, clock, number, percent } from "../format.js";
import { announce, attempt, emptyBox, loading } from "../notices.js";
import { coalesced } from "../wait.js";

const SOON_MS = 500;

export function checkpointsTab(place, model, signal) {
  const refused = h("div");
  const list = h("div", {}, loading());
  const shown = new Set();
  const load = coalesced(loadNow, SOON_MS, signal, () => {});
  fill(place, refused, list);
  model.addEventListener("job", load, { signal });
  load();

  async function loadNow() {
    const found = await attempt(refused, async () => {
      const all = [];
      for await (const page of pages(`${model.path}/checkpoints`, {}, signal)) all.push(...page);
      return all;
    });
    if (!found) return;
    if (!found.length) return fill(list, nothingYet(model));
    if (!shown.size) fill(list);
    for (const checkpoint of found.sort((a, b) => a.step - b.step)) {
      if (shown.has(checkpoint.id)) continue;
      shown.add(checkpoint.id);
      list.prepend(entry(checkpoint, model, signal));
    }
  }
}

function nothingYet(model) {
  const every = model.job.spec.training?.checkpoint_every;
  return emptyBox(
    "There is no checkpoint yet.",
    `One is written every ${every} steps (training.checkpoint_every) and at the end.`,
  );
}

function entry(checkpoint, model, signal) {
  const { step, files, reference, created_at, metrics } = checkpoint;
  const reward = metrics["reward/mean"];
  const total = files.reduce((sum, file) => sum + file.bytes, 0);
  return h(
    "article",
    { class: "card checkpoint" },
    h("h3", {}, `Step ${step}`, checkpoint.final && " (final)"),
    h(
      "p",
      { class: "soft" },
      `${clock(created_at)} · ${bytes(total)}`,
      reward !== undefined && ` · reward ${number(reward)}`,
    ),
    h("p", {}, "To begin another job here, write ", h("code", {}, `model: {path: "${reference}"}`)),
    h(
      "ul",
      { class: "files" },
      files.map((file) => fileLine(checkpoint, file, model, signal)),
    ),
  );
}

function fileLine(checkpoint, file, model, signal) {
  const refused = h("div");
  const done = h("span", { class: "soft", role: "status" });
  const button = h(
    "button",
    {
      type: "button",
      class: "link",
      "aria-label": `${file.name}, download of step ${checkpoint.step}`,
      onclick: download,
    },
    file.name,
  );
  return h("li", {}, button, h("span", { class: "soft" }, ` ${bytes(file.bytes)} `), done, refused);

  async function download() {
    const name = file.name.split("/").map(encodeURIComponent).join("/");
    button.disabled = true;
    const blob = await attempt(refused, () =>
      fetched(
        `${model.path}/checkpoints/${checkpoint.step}/files/${name}`,
        file.bytes,
        done,
        signal,
      ),
    );
    button.disabled = false;
    if (!blob) return;
    save(blob, file.name.split("/").at(-1));
    announce(`${file.name} was downloaded.`);
  }
}

/** A link cannot send the key, so the page fetches the file and hands it to the browser. */
async function fetched(path, size, told, signal) {
  const response = await send("GET", path, { signal });
  const pieces = [];
  let received = 0;
  for await (const piece of response.body) {
    pieces.push(piece);
    received += piece.length;
    say(told, size ? percent(received / size) : "");
  }
  say(told, "");
  return new Blob(pieces);
}

function save(blob, name) {
  const url = URL.createObjectURL(blob);
  const link = h("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}
