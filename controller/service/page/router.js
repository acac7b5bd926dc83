// The part of the address after #, and which view shows it.

import { fill, h } from "./dom.js";
import { loading, problemBox } from "./notices.js";
import { sleep } from "./wait.js";

const AGAIN_MS = 3000; // until a service that was not reached is asked again

/** Views by the first part of the address. A view is `(main, parts, signal) -> {title, moved?}`:
 * `signal` is aborted when it is left; `moved(parts)` returns whether the view that is open can
 * show these parts itself. */
export function startRouter(main, views, fallback) {
  let open = null;
  let leaving = null;

  /** `again`: what is shown already is that the service was not reached. */
  async function show(again = false) {
    const parts = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decode);
    const known = Object.hasOwn(views, parts[0] ?? "");
    const name = known ? parts[0] : fallback();
    const rest = known ? parts.slice(1) : [];
    mark(name);
    if (open?.name === name && open.view.moved?.(rest)) return;
    leaving?.abort();
    open = null;
    const left = (leaving = new AbortController());
    if (!again) fill(main, loading());
    try {
      const view = await views[name](main, rest, left.signal);
      if (left.signal.aborted) return;
      open = { name, view };
      document.title = `${view.title} · rlhfless`;
    } catch (error) {
      if (left.signal.aborted) return;
      if (error.status === 0) later(left.signal);
      if (error.status === 0 && again) return;
      document.title = "rlhfless";
      fill(
        main,
        h("h1", {}, error.status === 404 ? "Nothing is here" : "This cannot be shown"),
        problemBox(error),
        h("p", {}, h("a", { class: "button", href: "#/jobs" }, "All jobs")),
      );
    }
    (main.querySelector("[data-first]") ?? main).focus({ preventScroll: true });
  }

  async function later(signal) {
    await sleep(AGAIN_MS, signal);
    if (!signal.aborted) show(true);
  }

  window.addEventListener("hashchange", () => show());
  show();
  return { show };
}

function mark(name) {
  for (const link of document.querySelectorAll("#pages a")) {
    if (link.hash === `#/${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
