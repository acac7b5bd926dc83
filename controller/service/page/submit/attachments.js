// The files that a job names: choose them here, and they are uploaded.

import { fill, h, say } from "../dom.js";
import { bytes, percent } from "../format.js";
import { attempt } from "../notices.js";
import { namedFiles, withIds } from "./references.js";
import { tarOf } from "./tar.js";
import { upload } from "./upload.js";

const ACCEPTED = {
  dataset: ".jsonl,.ndjson,.json,.parquet,.tar,.tar.gz,.tgz",
  reward: ".py",
  model: ".tar,.tar.gz,.tgz",
};

/** `text()` returns the job as it is written now. */
export function attachments(text, signal) {
  const ids = new Map(); // of what was uploaded, by the value in the job
  const rows = new Map();
  const list = h("ul", { class: "attachments" });
  const element = h(
    "section",
    { "aria-labelledby": "attach", hidden: true },
    h("h2", { id: "attach" }, "Files that it names"),
    h(
      "p",
      { class: "soft" },
      "The service cannot read your disk: attach them, and they are uploaded.",
    ),
    list,
  );
  return {
    element,
    update,
    /** The job with references to what was uploaded. */
    resolved: () => withIds(text(), ids),
    /** What is named and was not attached, but for what may be meant to come from the Hub. */
    missing: () =>
      namedFiles(text())
        .filter(({ value, perhapsHub }) => !perhapsHub && !ids.has(value))
        .map(({ value }) => value),
  };

  function update() {
    const named = namedFiles(text());
    element.hidden = !named.length;
    for (const entry of named) {
      if (!rows.has(entry.value)) rows.set(entry.value, attachment(entry, ids, signal));
    }
    const wanted = named.map(({ value }) => rows.get(value));
    const same =
      wanted.length === list.children.length && wanted.every((row, n) => row === list.children[n]);
    if (!same) fill(list, wanted);
  }
}

function attachment({ value, purpose, perhapsHub }, ids, signal) {
  const status = h(
    "span",
    { role: "status", class: "soft" },
    perhapsHub ? "taken from the Hub if nothing is attached" : "not attached",
  );
  const refused = h("div");
  const kinds = purpose === "model" ? ["file", "folder"] : ["file"];
  const inputs = kinds.map((kind) =>
    h(
      "label",
      { class: "button" },
      purpose === "model" ? `Choose a ${kind === "file" ? "tar" : kind}` : "Choose a file",
      h("input", {
        type: "file",
        class: "unseen",
        accept: kind === "file" ? ACCEPTED[purpose] : null,
        webkitdirectory: kind === "folder",
        "aria-label": `${kind === "folder" ? "Folder" : "File"} for ${value}`,
        onchange: (event) => send(event.target, kind),
      }),
    ),
  );
  return h(
    "li",
    { class: "card" },
    h("code", {}, value),
    h("div", { class: "row" }, inputs, status),
    refused,
  );

  async function send(input, kind) {
    const files = [...input.files];
    if (!files.length) return;
    const [content, name] =
      kind === "folder"
        ? [tarOf(files), `${files[0].webkitRelativePath.split("/")[0]}.tar`]
        : [files[0], files[0].name];
    ids.delete(value);
    const progress = (share) =>
      say(status, share < 1 ? `sending ${name}: ${percent(share)}` : `${name} is being stored`);
    const stored = await attempt(refused, () => upload(content, name, purpose, progress, signal));
    input.value = ""; // so that the same file can be chosen again
    if (!stored) return say(status, "not attached");
    ids.set(value, stored.id);
    say(status, `${stored.filename}, ${bytes(stored.bytes)}, uploaded`);
  }
}
