// A question that has to be answered before anything else.

import { h } from "./dom.js";

/** True for yes. Escape is no. */
export function ask({ title, contents, yes, no, danger = false }) {
  return new Promise((resolve) => {
    const heading = h("h2", { id: "asked" }, title);
    const form = h(
      "form",
      { method: "dialog" },
      heading,
      contents,
      h(
        "div",
        { class: "actions" },
        // No submit button: Enter in a field would press the first of these.
        h("button", { type: "button", onclick: () => dialog.close("no"), autofocus: danger }, no),
        h("button", { type: "submit", value: "yes", class: danger ? "danger" : "main" }, yes),
      ),
    );
    const dialog = h("dialog", { "aria-labelledby": "asked" }, form);
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
