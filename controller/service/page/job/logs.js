// What the controller and the function instances wrote, as they write it.

import { pages } from "../api.js";
import { fill, h } from "../dom.js";
import { clock } from "../format.js";
import { emptyBox, loading, problemBox } from "../notices.js";
import { repeat } from "../wait.js";

const EVERY_MS = 3000;
const SHOWN = 2000;

function nothing(ended) {
  if (ended) return emptyBox("Nothing was written.", "What a reward prints would be here.");
  return emptyBox(
    "Nothing has been written yet.",
    "What the controller and a reward print comes here.",
  );
}

export function logsTab(place, model, signal) {
  const source = h("select", { id: "source" }, h("option", { value: "" }, "everything"));
  const follow = h("input", { id: "follow", type: "checkbox", checked: true });
  const lines = h("ol", {
    class: "log",
    hidden: true,
    tabindex: "0",
    "aria-label": "Log, the newest last",
  });
  const told = h("div", {}, loading());
  const sources = new Set();
  let last = null;
  fill(
    place,
    h(
      "div",
      { class: "row" },
      h("label", { for: "source" }, "Show"),
      source,
      h("label", {}, follow, " Follow"),
    ),
    told,
    lines,
  );
  source.addEventListener("change", () => {
    for (const line of lines.children) line.hidden = !wanted(line.dataset.source);
    scroll();
  });
  repeat(load, EVERY_MS, signal, (error) => error.status !== 0 && fill(told, problemBox(error)));

  async function load() {
    const ended = model.ended; // before it is asked: what was written last is in the answer
    for await (const page of pages(`${model.path}/logs`, {}, signal, last)) {
      for (const line of page) add(line);
      last = page.at(-1).id;
    }
    fill(told, !last && nothing(ended));
    lines.hidden = !last;
    while (lines.children.length > SHOWN) lines.firstChild.remove();
    scroll();
    return !ended;
  }

  function add(line) {
    if (!sources.has(line.source)) {
      sources.add(line.source);
      source.append(h("option", { value: line.source }, line.source));
    }
    lines.append(
      h(
        "li",
        { "data-source": line.source, hidden: !wanted(line.source) },
        h("time", {}, clock(line.created_at)),
        h("span", { class: "type" }, line.source),
        h("span", { class: "message" }, line.text),
      ),
    );
  }

  function wanted(name) {
    return !source.value || name === source.value;
  }

  function scroll() {
    if (follow.checked) lines.scrollTop = lines.scrollHeight;
  }
}
