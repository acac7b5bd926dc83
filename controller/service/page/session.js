// The API key and what it may do, for as long as the tab is open and never longer.

const NAME = "rlhfless-key";
const SCOPE = "rlhfless-scope";

export const session = new EventTarget();
if (sessionStorage.getItem(SCOPE)) allow(sessionStorage.getItem(SCOPE));

export function key() {
  return sessionStorage.getItem(NAME);
}

export function signIn(text) {
  sessionStorage.setItem(NAME, text);
}

/** Note what the key may do. The page shows what needs more (`.changes`) to nobody else. */
export function allow(scope) {
  sessionStorage.setItem(SCOPE, scope);
  document.documentElement.dataset.scope = scope;
}

/** Forget the key. Listeners of `session` hear `signed-out` and, for people, why. */
export function signOut(reason = "") {
  sessionStorage.clear();
  delete document.documentElement.dataset.scope;
  session.dispatchEvent(new CustomEvent("signed-out", { detail: reason }));
}
