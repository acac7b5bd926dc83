// The job that is being written, kept until the tab is closed.

const NAME = "rlhfless-draft";

export function keepDraft(text) {
  sessionStorage.setItem(NAME, text);
}

export function draft() {
  return sessionStorage.getItem(NAME) ?? "";
}
