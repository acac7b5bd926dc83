// The API key, for as long as the tab is open and never longer.

const NAME = "rlhfless-key";

export const session = new EventTarget();

export function key() {
  return sessionStorage.getItem(NAME);
}

export function signIn(text) {
  sessionStorage.setItem(NAME, text);
}

/** Forget the key. Listeners of `session` hear `signed-out` and, for people, why. */
export function signOut(reason = "") {
  sessionStorage.clear();
  session.dispatchEvent(new CustomEvent("signed-out", { detail: reason }));
}
