// One sample: prompt, response, rewards, and how likely each token was.

import { h } from "../dom.js";
import { many, number, percent } from "../format.js";
import { table } from "../table.js";

const COLDEST = -5; // log-prob at which the colour is full
const UNLIKELIEST = 5; // tokens told in words

export function sampleCard(sample) {
  const parts = Object.entries(sample.rewards);
  const facts = [
    many(sample.num_tokens, "token"),
    `ended by ${sample.finish_reason}`,
    `weights v${sample.version}`,
  ];
  return h(
    "article",
    { class: "sample card" },
    h(
      "header",
      {},
      h("strong", { class: "reward" }, "Reward ", number(sample.reward)),
      parts.map(([name, value]) => h("span", { class: "part" }, name, " ", part(value))),
      h("span", { class: "soft small facts" }, facts.join(" · ")),
    ),
    h("h3", {}, "Prompt"),
    prompt(sample.prompt),
    h("h3", {}, "Response"),
    sample.tokens ? heat(sample.tokens) : h("pre", { class: "text" }, sample.completion || " "),
    sample.tokens && sample.tokens.length > 0 && unlikeliest(sample.tokens),
  );
}

function part(value) {
  return value === null ? "does not apply" : number(value);
}

/** A string, or chat messages. */
function prompt(given) {
  if (!Array.isArray(given)) return h("pre", { class: "text" }, told(given));
  return h(
    "dl",
    { class: "chat" },
    given.map((message) => [
      h("dt", {}, told(message?.role ?? "message")),
      h("dd", {}, h("pre", { class: "text" }, told(message?.content ?? message))),
    ]),
  );
}

function told(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

function heat(tokens) {
  const pieces = tokens.map(({ text, logprob }) =>
    h(
      "span",
      { class: "token", style: { "--heat": share(logprob) }, title: likelihood(logprob) },
      text,
    ),
  );
  return h("pre", { class: "text heat" }, pieces);
}

/** From 0, certain, to 1. */
function share(logprob) {
  return logprob === null ? 0 : Math.min(1, Math.max(0, logprob / COLDEST));
}

function likelihood(logprob) {
  return logprob === null
    ? "log-prob unknown"
    : `log-prob ${logprob.toFixed(2)}, ${percent(Math.exp(logprob))}`;
}

/** What the colours say, in words. */
function unlikeliest(tokens) {
  const ranked = tokens
    .map((token, index) => ({ ...token, index }))
    .filter(({ logprob }) => logprob !== null)
    .sort((a, b) => a.logprob - b.logprob)
    .slice(0, UNLIKELIEST);
  const sum = tokens.reduce((total, { logprob }) => total + (logprob ?? 0), 0);
  return h(
    "details",
    { class: "values" },
    h("summary", {}, `Least likely tokens; log-prob of the response ${number(sum)}`),
    table(
      "The stronger its colour, the less likely a token was",
      ["Token", "Place", "Log-prob", "Probability"],
      ranked.map(({ text, index, logprob }) => [
        h("code", {}, JSON.stringify(text)),
        String(index + 1),
        logprob.toFixed(3),
        percent(Math.exp(logprob)),
      ]),
    ),
  );
}
