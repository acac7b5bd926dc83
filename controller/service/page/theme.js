// Light, dark, or as the system says.

import { say } from "./dom.js";

const NAME = "rlhfless-theme";
const WORDS = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };
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
    say(button, WORDS[chosen]);
  }
}
