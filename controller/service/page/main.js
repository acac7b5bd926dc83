// Starts the page: theme, session, and the view that the address names.

import { get } from "./api.js";
import { following } from "./connection.js";
import { say } from "./dom.js";
import { announce } from "./notices.js";
import { startRouter } from "./router.js";
import { allow, key, session, signOut } from "./session.js";
import { startTheme } from "./theme.js";
import { jobsView } from "./jobs.js";
import { jobView } from "./job/page.js";
import { signInView } from "./sign_in.js";
import { submitView } from "./submit/page.js";

const AGAIN_MS = 2000;
const at = (id) => document.getElementById(id);
const views = { "sign-in": signInView, jobs: jobsOrJob, submit: submitView };

function jobsOrJob(main, parts, signal) {
  return parts.length ? jobView(main, parts, signal) : jobsView(main, signal);
}

/** Without a key every address leads to the form that asks for one. */
function needingKey(view) {
  return (main, parts, signal) => {
    showAccount();
    return key() ? view(main, parts, signal) : signInView(main, parts, signal);
  };
}

let tenantOf = null;

/** Whose key this is, in the page's head, and what it may do. */
async function showAccount() {
  at("pages").hidden = at("sign-out").hidden = !key();
  if (!key()) say(at("tenant"), "");
  if (!key() || tenantOf === key()) return;
  const asked = (tenantOf = key());
  const tenant = await get("v1/tenant").catch(() => null);
  if (asked !== key()) return;
  if (tenant) {
    say(at("tenant"), `${tenant.name} (${tenant.scope})`);
    allow(tenant.scope);
  } else {
    tenantOf = null;
    setTimeout(showAccount, AGAIN_MS);
  }
}

startTheme(at("theme"));
const guarded = Object.fromEntries(
  Object.entries(views).map(([name, view]) => [name, needingKey(view)]),
);
const router = startRouter(at("main"), guarded, () => "jobs");
at("sign-out").addEventListener("click", () => signOut());
session.addEventListener("signed-out", ({ detail }) => {
  tenantOf = null;
  following(null);
  announce(detail ? `Signed out: ${detail}` : "Signed out");
  if (location.hash === "#/sign-in") router.show();
  else location.hash = "#/sign-in";
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address after # is the view's
  at("main").focus();
});
