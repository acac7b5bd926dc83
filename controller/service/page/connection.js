// Whether the service answers, and whether events come as they happen: the dot in the page's head.

import { say } from "./dom.js";

let answers = true;
let live = null; // null: nothing is being followed

/** An answer came. */
export function reached() {
  if (!answers) show(true, live);
}

/** A request found nobody. */
export function unreachable() {
  show(false, live);
}

/** An event stream is open (true), was cut (false), or is not wanted (null). */
export function following(state) {
  show(state === true ? true : answers, state);
}

function show(nowAnswers, nowLive) {
  answers = nowAnswers;
  live = nowLive;
  const element = document.getElementById("connection");
  const cut = !answers || live === false;
  element.className = cut ? "cut" : live ? "live" : "";
  say(element, cut ? "Connection lost, trying again" : live ? "Live" : "");
}
