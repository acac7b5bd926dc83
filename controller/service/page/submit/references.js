// Which files of the person's machine a job's text names, in YAML and JSON alike. Pure.

const FIELD =
  /["']?\b(path|python|model)["']?[ \t]*:[ \t]*("([^"\n]+)"|'([^'\n]+)'|([^\s"'#,{}[\]][^\s#,{}[\]]*))/g;
const REFERENCE = /^(file-[0-9a-f]{24}|library:|checkpoint:|https?:)/;
const NOTHING = new Set(["null", "~"]);
const HUB = /^[A-Za-z0-9][\w.-]*\/[A-Za-z0-9][\w.-]*$/;
const DATA = /\.(jsonl|ndjson|json|parquet)$/;

/** Entries {value, purpose, perhapsHub, places}: `places` are [start, end] of the value in the
 * text; what the service or the Hub is asked for by name is left out, or `perhapsHub`. */
export function namedFiles(text) {
  const found = new Map();
  for (const match of text.matchAll(FIELD)) {
    if (commented(text, match.index)) continue;
    const [whole, field, written] = match;
    if (NOTHING.has(match[5])) continue;
    const value = fileOf(field, match[3] ?? match[4] ?? match[5]);
    if (value === null || REFERENCE.test(value)) continue;
    const start = match.index + whole.length - written.length + (match[5] === undefined ? 1 : 0);
    const purpose = purposeOf(text, match.index, field, value);
    const entry = found.get(value) ?? {
      value,
      purpose,
      perhapsHub: isHub(field, value),
      places: [],
    };
    entry.places.push([start, start + value.length]);
    found.set(value, entry);
  }
  return [...found.values()];
}

/** The text with each value of which `ids` has the file's id replaced by it. */
export function withIds(text, ids) {
  const places = namedFiles(text)
    .filter(({ value }) => ids.has(value))
    .flatMap(({ value, places }) => places.map(([start, end]) => [start, end, ids.get(value)]))
    .sort(([a], [b]) => b - a); // from the end, so that the others stay where they are
  return places.reduce(
    (told, [start, end, id]) => told.slice(0, start) + id + told.slice(end),
    text,
  );
}

function commented(text, index) {
  return /(^|\s)#/.test(text.slice(text.lastIndexOf("\n", index) + 1, index));
}

/** The file of a value; of `rewards.py:function` what is before the function. */
function fileOf(field, value) {
  if (field !== "python") return value;
  const [, file] = /^(.+\.py):[^:]*$/.exec(value) ?? [];
  return file ?? null; // package.module:function is no file
}

function isHub(field, value) {
  return field !== "python" && HUB.test(value) && !DATA.test(value);
}

function purposeOf(text, index, field, value) {
  if (field === "python") return "reward";
  if (field === "model") return "model";
  if (DATA.test(value)) return "dataset";
  const sections = [...text.slice(0, index).matchAll(/\b(model|dataset)["']?\s*:/g)];
  return sections.at(-1)?.[1] === "dataset" ? "dataset" : "model";
}
