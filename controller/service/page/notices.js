// What people are told: refusals, empty lists, things done.

import { fill, h, say } from "./dom.js";

const SHOWN_MS = 5000;
let timer = 0;

/** A refusal, with what to do about it. */
export function problemBox(error) {
  return h(
    "div",
    { class: "problem", role: "alert" },
    h("strong", {}, error.title || "Something went wrong"),
    error.message !== error.title && h("p", {}, error.message),
    error.hint && h("p", { class: "soft" }, error.hint),
    error.param && h("p", { class: "soft small" }, "Field: ", h("code", {}, error.param)),
  );
}

/** What is shown where there is nothing yet, and what to do then. */
export function emptyBox(...told) {
  return h(
    "div",
    { class: "empty" },
    told.map((line) => h("p", {}, line)),
  );
}

export function loading(what = "Loading …") {
  return h("p", { class: "loading", role: "status" }, what);
}

/** Tell in passing what was done. */
export function announce(text) {
  const place = document.getElementById("said");
  say(place, text);
  clearTimeout(timer);
  timer = setTimeout(() => say(place, ""), SHOWN_MS);
}

/** Run something that may be refused, with the refusal in `place`; null if it was. */
export async function attempt(place, action) {
  fill(place);
  try {
    return await action();
  } catch (error) {
    if (error.name === "AbortError") return null;
    fill(place, problemBox(error));
    return null;
  }
}
