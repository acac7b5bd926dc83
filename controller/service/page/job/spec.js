// The job as it was submitted, every default spelt out.

import { fill, h } from "../dom.js";
import { keepDraft } from "../submit/draft.js";

export function specTab(place, model) {
  const text = JSON.stringify(model.job.spec, null, 2);
  const again = () => {
    keepDraft(text);
    location.hash = "#/submit";
  };
  fill(
    place,
    h(
      "div",
      { class: "row" },
      h("button", { type: "button", class: "changes", onclick: again }, "Use for a new job"),
      h("span", { class: "soft" }, "Secrets are masked: write them again."),
    ),
    h("pre", { class: "code", tabindex: "0", "aria-label": "Job spec" }, text),
  );
}
