// Server-Sent Events by fetch, which unlike EventSource can send the key in a header.

import { Problem, send } from "./api.js";
import { following } from "./connection.js";
import { sleep } from "./wait.js";

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15000;
const SILENCE_MS = 20000; // the service says something every second

/** Hand every event of a stream to `take`, in order, until the service ends the stream and `ended`
 * says that nothing follows. A stream that was cut is taken up after the last event. */
export async function follow(path, take, ended, signal) {
  let last = null;
  let wait = FIRST_WAIT_MS;
  try {
    while (!signal.aborted) {
      try {
        for await (const event of events(path, last, signal)) {
          wait = FIRST_WAIT_MS;
          if (event.id) last = event.id;
          take(JSON.parse(event.data));
        }
        if (await ended()) return;
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof Problem && error.status >= 400 && error.status < 500) throw error;
        following(false);
      }
      await sleep(wait * (0.75 + Math.random() / 2), signal);
      wait = Math.min(2 * wait, LONGEST_WAIT_MS);
    }
  } finally {
    following(null);
  }
}

async function* events(path, last, signal) {
  const cut = new AbortController();
  const stop = () => cut.abort();
  signal.addEventListener("abort", stop);
  let watch = setTimeout(stop, SILENCE_MS);
  try {
    const headers = { Accept: "text/event-stream", ...(last && { "Last-Event-ID": last }) };
    const response = await send("GET", path, { headers, signal: cut.signal });
    following(true);
    const parser = new Parser();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(watch);
      watch = setTimeout(stop, SILENCE_MS);
      yield* parser.push(value);
    }
  } finally {
    clearTimeout(watch);
    signal.removeEventListener("abort", stop);
    cut.abort();
  }
}

/** Lines of `text/event-stream` to events with an id and data; comments are left out. */
class Parser {
  #rest = "";
  #event = { id: "", data: [] };

  *push(text) {
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop();
    for (const line of lines) {
      if (line === "" && this.#event.data.length) {
        yield { id: this.#event.id, data: this.#event.data.join("\n") };
        this.#event = { id: "", data: [] };
      }
      const [, field, value] = /^(id|data): ?(.*)$/.exec(line) ?? [];
      if (field === "id") this.#event.id = value;
      if (field === "data") this.#event.data.push(value);
    }
  }
}
