// The form that asks for an API key.

import { send } from "./api.js";
import { fill, h } from "./dom.js";
import { attempt } from "./notices.js";
import { signIn } from "./session.js";

export function signInView(main) {
  const refused = h("div");
  const input = h("input", {
    id: "key",
    type: "password",
    required: true,
    "data-first": true,
    autocomplete: "off",
    spellcheck: "false",
    placeholder: "rlk_…",
    "aria-describedby": "key-help",
  });
  const button = h("button", { type: "submit", class: "main" }, "Sign in");
  const form = h(
    "form",
    { class: "narrow card", onsubmit: submit },
    h("h1", {}, "Sign in"),
    h("label", { for: "key" }, "API key"),
    input,
    h(
      "p",
      { id: "key-help", class: "soft small" },
      "A service that was started without settings has printed one and keeps it in ",
      h("code", {}, "admin-key"),
      " in its data folder; others are made with ",
      h("code", {}, "rlhfless keys create"),
      ". It is kept in this tab until you close it or sign out.",
    ),
    refused,
    button,
  );
  fill(main, form);
  return { title: "Sign in" };

  async function submit(event) {
    event.preventDefault();
    button.disabled = true;
    const headers = { Authorization: `Bearer ${input.value.trim()}` };
    const known = await attempt(refused, () =>
      send("GET", "v1/jobs", { query: { limit: 1 }, headers }),
    );
    button.disabled = false;
    if (!known) return input.select();
    signIn(input.value.trim());
    if (location.hash === "#/sign-in") location.hash = "#/jobs";
    else window.dispatchEvent(new Event("hashchange")); // to where they wanted to go
  }
}
