// What the page knows of a job: kept up to date by its events, for whichever tab is open.

import { get, pages } from "../api.js";
import { FINAL } from "../states.js";
import { follow } from "../stream.js";
import { coalesced, repeat } from "../wait.js";

const KEPT_EVENTS = 2000;
const SOON_MS = 150;
const SPANS_AT_ONCE = 1000;
const EVERY_MS = 4000; // what costs grows between events, too

/** Tells of `job`, `metrics`, `event` and, on demand, `spans`; of `failed` with the error. */
export class JobModel extends EventTarget {
  events = []; // the newest, in order
  metrics = []; // StepMetrics in order
  evaluations = []; // data of the events of type evaluated, in order
  spans = [];
  #ended = []; // spans that change no more
  #signal;

  constructor(job, signal) {
    super();
    this.job = job;
    this.#signal = signal;
  }

  /** The job as the service has it now. */
  static async open(id, signal) {
    return new JobModel(await get(path(id), {}, signal), signal);
  }

  get path() {
    return path(this.job.id);
  }

  get ended() {
    return FINAL.includes(this.job.state);
  }

  start() {
    const failed = (error) => this.#tell("failed", error);
    const ask = coalesced(() => this.refresh(), SOON_MS, this.#signal, failed);
    const take = (event) => {
      this.events.push(event);
      if (this.events.length > KEPT_EVENTS) this.events.shift();
      if (event.type === "evaluated") this.evaluations.push(event.data);
      this.#tell("event", event);
      ask();
    };
    const ended = async () => {
      await this.refresh();
      return this.ended;
    };
    follow(`${this.path}/events`, take, ended, this.#signal).catch(failed);
    repeat(async () => (await this.refresh(), !this.ended), EVERY_MS, this.#signal, failed);
  }

  /** Ask for the job and for the steps since the last that is known. */
  async refresh() {
    this.changed(await get(this.path, {}, this.#signal));
    const from = this.metrics.at(-1)?.id ?? null;
    for await (const page of pages(`${this.path}/metrics`, {}, this.#signal, from)) {
      const last = this.metrics.at(-1)?.step ?? 0; // another refresh may have been faster
      this.metrics.push(...page.filter((entry) => entry.step > last));
      this.#tell("metrics");
    }
  }

  /** The job is now as this answer says. */
  changed(job) {
    if (job.updated_at < this.job.updated_at) return; // answers may overtake each other
    this.job = job;
    this.#tell("job");
  }

  /** Ask for what instances did since the last time. */
  async refreshSpans() {
    const query = { limit: SPANS_AT_ONCE };
    const from = this.#ended.at(-1)?.id ?? null;
    for await (const page of pages(`${this.path}/timeline`, query, this.#signal, from)) {
      const goingOn = [];
      for (const span of page) (span.end_at === null ? goingOn : this.#ended).push(span);
      this.spans = [...this.#ended, ...goingOn];
      this.#tell("spans");
    }
  }

  /** Step numbers whose results can be looked at, in order. */
  steps() {
    return this.metrics.map((entry) => entry.step);
  }

  #tell(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}

function path(id) {
  return `v1/jobs/${encodeURIComponent(id)}`;
}
