// Round numbers along an axis, and where values lie on it.

import { number } from "../format.js";

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

/** Ticks in words, all with the decimals that tell them apart. */
export function labels(marks) {
  const step = marks.length > 1 ? marks[1] - marks[0] : Math.abs(marks[0]) / 10;
  if (step > 0 && step < 1e-4) return marks.map(number);
  const digits = step > 0 ? Math.max(0, Math.ceil(-Math.log10(step) - 1e-9)) : 0;
  const decimals = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return marks.map((mark) =>
    Math.abs(mark) < 1e4
      ? mark.toLocaleString("en", decimals)
      : mark.toLocaleString("en", { notation: "compact", maximumFractionDigits: 2 }),
  );
}

/** A function from values between `low` and `high` to pixels between `from` and `to`. */
export function scale([low, high], from, to) {
  const span = high - low || 1;
  return (value) => from + ((value - low) / span) * (to - from);
}

/** Ends of an axis with some room around `values`; from 0 where that is not far. `least`: share of
 * the greatest value that the axis spans at least, so that a trifle is not drawn as a cliff. */
export function domain(values, least = 0) {
  const low = Math.min(...values);
  const high = Math.max(...values);
  if (!Number.isFinite(low)) return [0, 1];
  const missing = Math.max(0, least * Math.abs(high) - (high - low)) / 2;
  const room = missing + (high > low ? 0.08 * (high - low) : Math.abs(high) * 0.1 || 1);
  const begin = low >= 0 && low - room < 0.4 * high ? 0 : low - room;
  return [begin, high + room];
}
