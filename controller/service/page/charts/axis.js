// Round numbers along an axis, and where values lie on it.

/** Round numbers from `low` to `high`, about so many. */
export function ticks(low, high, about = 5) {
  if (!(high > low)) return [low];
  const rough = (high - low) / about;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((each) => power * each >= rough * 0.7);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, n) =>
    Number(((first + n) * step).toPrecision(12)),
  );
}

/** A function from values between `low` and `high` to pixels between `from` and `to`. */
export function scale([low, high], from, to) {
  const span = high - low || 1;
  return (value) => from + ((value - low) / span) * (to - from);
}

/** Ends of an axis with some room around `values`; from 0 where that is not far. */
export function domain(values) {
  const low = Math.min(...values);
  const high = Math.max(...values);
  if (!Number.isFinite(low)) return [0, 1];
  const room = high > low ? 0.08 * (high - low) : Math.abs(high) * 0.1 || 1;
  const begin = low >= 0 && low - room < 0.4 * high ? 0 : low - room;
  return [begin, high + room];
}
