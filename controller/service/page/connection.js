// Whether the service answers, and whether events come as they happen: the dot in the page's head.

import { say } from "./dom.js";

const AGAIN_MS = 3000;

let answers = true;
let live = null; // null: nothing is being followed

/** An answer came. */
export function reached() {
  if (!answers) show(true, live);
}

/** A request found nobody: ask until somebody answers. */
export function unreachable() {
  if (answers) setTimeout(ask, AGAIN_MS);
  show(false, live);
}

async function ask() {
  if (answers) return;
  const answer = await fetch("healthz").catch(() => null);
  if (answer) reached();
  else setTimeout(ask, AGAIN_MS);
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
