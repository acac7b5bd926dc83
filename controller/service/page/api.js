// The REST API: calls with the key, pages, and refusals as problem documents.

import { key, signOut } from "./session.js";
import { reached, unreachable } from "./connection.js";

const PER_PAGE = 100;

/** Why the service refused: a problem document (RFC 9457). `status` 0: it was not reached. */
export class Problem extends Error {
  constructor({ status = 0, title = "", detail = "", hint = null, param = null } = {}) {
    super(detail || title);
    Object.assign(this, { status, title, hint, param });
  }
}

/** The answer to a request; raises `Problem`. `path` begins with `v1/`; `query` leaves out nulls. */
export async function send(method, path, { query, body, headers, signal } = {}) {
  const all = new Headers(headers);
  if (key() && !all.has("Authorization")) all.set("Authorization", `Bearer ${key()}`);
  let response;
  try {
    response = await fetch(address(path, query), { method, body, headers: all, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    unreachable();
    throw new Problem({
      title: "The service cannot be reached",
      hint: "Check that it runs and that this machine has a network, then try again.",
    });
  }
  reached();
  if (!response.ok) throw await refusal(response);
  return response;
}

export async function get(path, query, signal) {
  return (await send("GET", path, { query, signal })).json();
}

/** Post a JSON value, or text of another media type. */
export async function post(path, value, { type = "application/json", headers, signal } = {}) {
  const body =
    typeof value === "string" ? value : value === undefined ? undefined : JSON.stringify(value);
  const all = body === undefined ? headers : { "Content-Type": type, ...headers };
  return (await send("POST", path, { body, headers: all, signal })).json();
}

/** Every entry of a paged list after `after`, a page at a time. */
export async function* pages(path, query, signal, after = null) {
  for (let more = true; more;) {
    const page = await get(path, { limit: PER_PAGE, ...query, after }, signal);
    if (page.data.length) yield page.data;
    after = page.data.at(-1)?.id ?? after;
    more = page.has_more && page.data.length > 0;
  }
}

/** The problem that an answer or an error is. */
export async function refusal(response) {
  const told = await response.json().catch(() => ({}));
  if (response.status === 401 && key()) signOut(told.detail ?? "");
  return new Problem({ title: response.statusText, ...told, status: response.status });
}

/** A key under which repeating a request changes nothing. */
export function newIdempotencyKey() {
  const random = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(random, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function address(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined);
  const search = new URLSearchParams(given).toString();
  return search ? `${path}?${search}` : path;
}
