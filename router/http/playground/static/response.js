/* The response of a single run: tokens, counts of verdicts, figures. */

import { byId, element, enable } from "./dom.js";
import { duration, percent, plural } from "./format.js";
import { rejections, rescuedShare, speed } from "./run.js";
import { TokenView, legendEntries } from "./tokens.js";

const UNKNOWN = "–";
const ENDINGS = { stop: "ended by itself", length: "cut at max tokens" };
const REASONS = { exact: "mismatch" };
const FIGURES = [
  ["Tokens/s", (run) => speed(run).toFixed(1)],
  ["Tau", (run) => run.statistics.tau.toFixed(2)],
  ["Rescued", (run) => percent(rescuedShare(run))],
  ["First token", (run) => duration(run.statistics.time_to_first_token_s)],
  ["Time", (run) => duration(run.statistics.total_s)],
  ["Rejected by", (run) => rejectionText(run.statistics)],
];

/** Shows one run at a time. */
export class ResponseView {
  constructor() {
    this.tokens = new TokenView(byId("tokens"), "Response");
    byId("verdicts").replaceChildren(...legendEntries());
    byId("figures").replaceChildren(...FIGURES.map(([name]) => figure(name)));
  }

  start(run) {
    this.tokens.reset(run.measure);
    enable(byId("copy-text"), false);
    byId("details-line").textContent = "";
    for (const id of ["figures", "details-line"]) byId(id).hidden = false;
    this.#count(run);
    this.#figures(() => UNKNOWN);
  }

  update(run, added) {
    this.tokens.append(added);
    this.#count(run);
  }

  end(run) {
    enable(byId("copy-text"), run.text !== "");
    if (!run.statistics) return;
    this.#figures((compute) => compute(run));
    byId("details-line").textContent = details(run);
  }

  #count(run) {
    for (const count of byId("verdicts").querySelectorAll(".count")) {
      count.textContent = run.counts[count.dataset.verdict];
    }
  }

  #figures(toText) {
    const values = byId("figures").querySelectorAll("dd");
    FIGURES.forEach(([, compute], index) => (values[index].textContent = toText(compute)));
  }
}

/** One line more on how a run was made, and what the router has to say about it. */
export function details(run) {
  const { emitted, rounds, drafted, accepted, drafter_forwards: forwards, sub_drafter_tokens: supplied } = run.statistics;
  const parts = [
    `${plural(emitted, "token")} in ${plural(rounds, "round")}`,
    drafted && `${accepted} of ${plural(drafted, "draft")} accepted`,
    forwards && plural(forwards, "drafter forward"),
    supplied && `${plural(supplied, "draft")} from the sub-drafter`,
    ENDINGS[run.finishReason],
    ...run.warnings,
  ];
  return parts.filter(Boolean).join(" · ");
}

function figure(name) {
  return element("div", {}, element("dt", {}, name), element("dd", {}, UNKNOWN));
}

function rejectionText(statistics) {
  const found = rejections(statistics).map(([reason, count]) => `${REASONS[reason] ?? reason} ${count}`);
  return found.join(" · ") || "nothing";
}
