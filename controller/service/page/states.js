// A job's states in words and colours.

import { h } from "./dom.js";

export const FINAL = ["succeeded", "failed", "cancelled"];

const MEANING = {
  queued: "Accepted, and waiting for its share of the instances.",
  running: "Being driven by a controller.",
  pausing: "Asked to pause; its open step is being finished.",
  paused: "Holds no instance, and goes on from its last step when it is resumed.",
  succeeded: "Every step is committed and its weights can be had.",
  failed: "Ended by an error or its budget; its checkpoints can be had.",
  cancelled: "Ended by its owner; its checkpoints can be had.",
};

export function statePill(state) {
  return h(
    "span",
    { class: `pill ${state in MEANING ? state : ""}`, title: MEANING[state] },
    state,
  );
}

/** What a job in a state may be asked to do. */
export function allowed(state) {
  return {
    pause: state === "running" || state === "queued",
    resume: state === "paused" || state === "pausing",
    cancel: !FINAL.includes(state),
  };
}
