// What happened to the job, the newest first, as it happens.

import { fill, h } from "../dom.js";
import { clock } from "../format.js";
import { emptyBox } from "../notices.js";

const SHOWN = 500;
const LEVELS = { all: [], "warnings and errors": ["warning", "error"], errors: ["error"] };

export function eventsTab(place, model, signal) {
  const level = h(
    "select",
    { id: "level" },
    Object.keys(LEVELS).map((name) => h("option", { value: name }, name)),
  );
  const list = h("ol", { class: "events" });
  const nothing = emptyBox("Nothing of this kind has happened yet.");
  fill(
    place,
    h("div", { class: "row" }, h("label", { for: "level" }, "Show"), level),
    list,
    nothing,
  );
  level.addEventListener("change", all);
  model.addEventListener("event", ({ detail }) => add(detail), { signal });
  all();

  function all() {
    fill(list);
    nothing.hidden = false;
    for (const event of model.events) add(event);
  }

  function add(event) {
    const wanted = LEVELS[level.value];
    if (wanted.length && !wanted.includes(event.level)) return;
    nothing.hidden = true;
    list.prepend(entry(event));
    if (list.children.length > SHOWN) list.lastChild.remove();
  }
}

function entry(event) {
  return h(
    "li",
    { class: event.level },
    h(
      "time",
      { datetime: new Date(event.created_at * 1000).toISOString() },
      clock(event.created_at),
    ),
    h("span", { class: "type" }, event.type),
    h(
      "span",
      { class: "message" },
      event.level !== "info" && h("strong", {}, `${event.level}: `),
      event.message,
    ),
  );
}
