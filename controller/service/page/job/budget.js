// Cost so far, and what the whole job will have cost, against its budget.

import { fill, h, say } from "../dom.js";
import { duration, percent, UNKNOWN, usd } from "../format.js";

export function budgetCard(model) {
  const big = h("p", { class: "big" });
  const small = h("p", { class: "soft small" });
  const bars = h("div");
  const element = h(
    "section",
    { class: "card wide" },
    h("h2", {}, "Cost so far"),
    big,
    small,
    bars,
  );
  return { element, show };

  function show() {
    const { progress, spec } = model.job;
    const forecast = model.ended ? null : model.job.forecast;
    const { spent } = progress;
    const priced = spent.usd !== null;
    say(big, priced ? usd(spent.usd) : duration(spent.held_s));
    say(small, told(priced, spent, forecast));
    const { max_usd, max_function_seconds } = spec.budget ?? {};
    const limited = max_usd != null || max_function_seconds != null;
    const lacking = [!priced && "Prices are unknown.", !limited && "No budget is set."];
    fill(
      bars,
      meter("", usd, spent.usd, forecast?.usd, max_usd),
      meter("function time ", duration, spent.held_s, forecast?.held_s, max_function_seconds),
      h("p", { class: "soft small lacking" }, lacking.filter(Boolean).join(" ")),
    );
  }
}

function told(priced, spent, forecast) {
  const kind = priced ? `for ${duration(spent.held_s)} of instances held` : "of instances held";
  if (!forecast) return kind;
  const end = priced ? usd(forecast.usd) : duration(forecast.held_s);
  return end === UNKNOWN ? kind : `${kind}, about ${end} in all`;
}

/** Spent and forecast as shares of a limit. */
function meter(name, format, spent, forecast, limit) {
  if (limit === null || limit === undefined) return null;
  const share = (value) => Math.min(1, (value ?? 0) / limit);
  const over = (forecast ?? spent ?? 0) > limit;
  const words =
    `${format(spent)} of ${format(limit)} ${name}spent` +
    (forecast == null
      ? ""
      : `, ${percent(forecast / limit)} by the end${over ? ": over the budget" : ""}`);
  return h(
    "div",
    { class: over ? "meter over" : "meter" },
    h(
      "div",
      { class: "track", "aria-hidden": "true" },
      h("i", { class: "forecast", style: { width: `${100 * share(forecast)}%` } }),
      h("i", { class: "spent", style: { width: `${100 * share(spent)}%` } }),
    ),
    h("p", { class: "small" }, words),
  );
}
