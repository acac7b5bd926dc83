// Which lane an instance is drawn in: lanes of instances that followed each other, by function.

const ORDER = ["rollout", "reward", "reference", "training"];

/** Spans ({instance, function, phase, start_at, end_at}) to lanes [{function, bars}]: an instance
 * takes the first lane that is free for all its life. `now` is the end of what goes on. */
export function lanes(spans, now) {
  const lives = new Map();
  for (const span of [...spans].sort((a, b) => a.start_at - b.start_at)) {
    if (!lives.has(span.instance)) lives.set(span.instance, []);
    lives
      .get(span.instance)
      .push({ ...span, end: span.end_at ?? now, goesOn: span.end_at === null });
  }
  const found = [];
  for (const life of lives.values()) {
    const free = found.find(
      (lane) => lane.function === life[0].function && lane.until <= life[0].start_at,
    );
    const lane = free ?? { function: life[0].function, until: 0, bars: [] };
    if (!free) found.push(lane);
    lane.bars.push(...merged(life));
    lane.until = life.reduce((until, span) => Math.max(until, span.end), 0);
  }
  return found.sort((a, b) => rank(a) - rank(b)); // stable: lanes of a function stay in order
}

function rank(lane) {
  const index = ORDER.indexOf(lane.function);
  return index < 0 ? ORDER.length : index;
}

/** Neighbouring stretches of the same phase are one bar. */
function merged(life) {
  const bars = [];
  for (const span of life) {
    const last = bars.at(-1);
    if (last?.phase === span.phase && Math.abs(last.end - span.start_at) < 1e-3) {
      last.end = span.end;
      last.goesOn = span.goesOn;
    } else bars.push(span);
  }
  return bars;
}
