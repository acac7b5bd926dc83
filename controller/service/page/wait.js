// Waiting, and doing something again and again while somebody looks.

const LONGEST_MS = 30000;

/** Ends at once when `signal` is aborted. */
export function sleep(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", done);
    function done() {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      resolve();
    }
  });
}

/** Run `task` now and every `ms` while the tab is seen, more rarely while it fails. What it raises
 * goes to `failed`. A task that returns false is not run again. */
export async function repeat(task, ms, signal, failed) {
  let wait = ms;
  while (!signal.aborted) {
    try {
      if ((await task()) === false) return;
      wait = ms;
    } catch (error) {
      if (signal.aborted) return;
      failed(error);
      wait = Math.min(2 * wait, LONGEST_MS);
    }
    await sleep(wait, signal);
    await seen(signal);
  }
}

/** Ends when the tab is seen. */
function seen(signal) {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => {
    document.addEventListener("visibilitychange", resolve, { once: true, signal });
    signal.addEventListener("abort", resolve, { once: true });
  });
}

/** A function that runs `task` soon after it is called, once for many calls in a row, and never
 * beside itself. */
export function coalesced(task, ms, signal, failed) {
  let asked = false;
  let running = false;
  return async function ask() {
    asked = true;
    if (running) return;
    running = true;
    while (asked && !signal.aborted) {
      await sleep(ms, signal);
      asked = false;
      if (signal.aborted) break;
      await Promise.resolve(task()).catch(failed);
    }
    running = false;
  };
}
