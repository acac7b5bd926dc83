// Numbers and times as people read them: three significant digits, "unknown" never 0.

export const UNKNOWN = "unknown";

/** Three significant digits, never fewer than the integer part has. */
export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 1e-4) return value.toExponential(2);
  const digits = size >= 99.95 ? 0 : Math.min(6, 2 - Math.floor(Math.log10(size) + 1e-9));
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

export function whole(value) {
  return value === null || value === undefined ? UNKNOWN : Math.round(value).toLocaleString("en");
}

/** "12.3 s", "2 min 31 s", "5 h 12 min". */
export function duration(seconds) {
  return lasting(seconds, number);
}

/** As `duration`, with as many decimals as its neighbours in a column. */
export function inColumn(seconds) {
  return lasting(seconds, (value) => value.toFixed(2));
}

function lasting(seconds, short) {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  if (seconds < 119.995) return `${short(seconds)}\u00a0s`;
  const units = [
    ["d", 86400],
    ["h", 3600],
    ["min", 60],
    ["s", 1],
  ];
  const first = units.findIndex(([, size]) => Math.round(seconds) >= 2 * size || size === 60);
  const [[name, size], [below, part]] = units.slice(first);
  const parts = Math.round(seconds / part);
  const rest = parts % (size / part);
  const told = `${Math.floor((parts * part) / size)}\u00a0${name}`;
  return rest ? `${told}\u00a0${rest}\u00a0${below}` : told;
}

export function usd(value) {
  if (value === null || value === undefined) return UNKNOWN;
  if (value === 0) return "$0";
  if (value < 0.001) return `$${number(value)}`;
  const digits = { minimumFractionDigits: 2, maximumFractionDigits: value < 1 ? 3 : 2 };
  return `$${value.toLocaleString("en", digits)}`;
}

/** "1 sample", "2 samples". */
export function many(count, name) {
  return `${whole(count)} ${name}${count === 1 ? "" : "s"}`;
}

export function bytes(value) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let step = 0;
  for (; value >= 1000 && step < units.length - 1; step++) value /= 1000;
  return `${step ? number(value) : value} ${units[step]}`;
}

export function percent(share) {
  return `${number(100 * share)}\u00a0%`;
}

/** What a moment (Unix seconds) is from now: "3 min ago". */
export function ago(at) {
  const seconds = Math.max(0, Date.now() / 1000 - at);
  if (seconds < 10) return "now";
  const units = [
    [60, "s"],
    [3600, "min"],
    [86400, "h"],
    [Infinity, "d"],
  ];
  const [index] = units.map(([below], n) => (seconds < below ? n : -1)).filter((n) => n >= 0);
  return `${Math.floor(seconds / (index ? units[index - 1][0] : 1))} ${units[index][1]} ago`;
}

/** Time of day; with the date unless it is today. */
export function clock(at) {
  const date = new Date(at * 1000);
  const time = date.toLocaleTimeString("en-GB");
  return date.toDateString() === new Date().toDateString() ? time : `${day(date)} ${time}`;
}

function day(date) {
  const two = (value) => String(value).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
}
