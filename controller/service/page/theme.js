// Light, dark, or as the system says.

import { fill, h } from "./dom.js";

const NAME = "rlhfless-theme";
const WORDS = { auto: ["◐", "System"], light: ["○", "Light"], dark: ["●", "Dark"] };
const NEXT = { auto: "light", light: "dark", dark: "auto" };

export function startTheme(button) {
  let chosen = localStorage.getItem(NAME) ?? "auto";
  if (!(chosen in NEXT)) chosen = "auto";
  show();
  button.addEventListener("click", () => {
    chosen = NEXT[chosen];
    localStorage.setItem(NAME, chosen);
    show();
  });

  function show() {
    document.documentElement.dataset.theme = chosen;
    const [sign, word] = WORDS[chosen];
    fill(button, sign, h("span", { class: "roomy" }, ` ${word}`));
    button.setAttribute("aria-label", `Colours: ${word}`);
  }
}
