// A folder as a tar (POSIX ustar), put together from its files without reading them.

const BLOCK = 512;

/** `files`: as a folder input gives them; their paths are told from the folder on. */
export function tarOf(files) {
  const parts = [];
  for (const file of files) {
    const name = file.webkitRelativePath.split("/").slice(1).join("/");
    if (name.split("/").some((part) => part.startsWith("."))) continue;
    parts.push(header(name, file.size), file, new Uint8Array(-file.size & (BLOCK - 1)));
  }
  return new Blob([...parts, new Uint8Array(2 * BLOCK)]);
}

function header(path, size) {
  const block = new Uint8Array(BLOCK);
  const write = (text, at) => block.set(new TextEncoder().encode(text), at);
  const octal = (value, digits) => value.toString(8).padStart(digits, "0");
  const [prefix, name] = split(path);
  write(name, 0);
  write("0000644", 100);
  write("0000000", 108);
  write("0000000", 116);
  write(octal(size, 11), 124);
  write("00000000000", 136);
  write("        ", 148); // the checksum's own place counts as blanks
  write("0", 156);
  write("ustar\u000000", 257);
  write(prefix, 345);
  write(
    `${octal(
      block.reduce((sum, byte) => sum + byte, 0),
      6,
    )}\u0000 `,
    148,
  );
  return block;
}

/** A path as its prefix and name, which have bounds. */
function split(path) {
  const long = (text, bound) => new TextEncoder().encode(text).length > bound;
  if (!long(path, 100)) return ["", path];
  for (let at = path.indexOf("/"); at >= 0; at = path.indexOf("/", at + 1)) {
    const parts = [path.slice(0, at), path.slice(at + 1)];
    if (!long(parts[1], 100) && !long(parts[0], 155)) return parts;
  }
  throw new Error(`${path}: the path is too long for a tar`);
}
