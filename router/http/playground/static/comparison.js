/* Plain, exact and FLy side by side on the same prompt. */

import { element } from "./dom.js";
import { clock, percent, plural } from "./format.js";
import { play } from "./play.js";
import { buildRequest } from "./request.js";
import { MODE_NAMES, NATS, firstDifference, rescuedShare, speed } from "./run.js";
import { TokenView } from "./tokens.js";

const MODES = Object.keys(MODE_NAMES);
const UNKNOWN = "–";
const SEEDS = 2 ** 32;

/** The three columns, and the runs that fill them. */
export class Comparison {
  constructor(container) {
    this.container = container;
    this.columns = Object.fromEntries(MODES.map((mode) => [mode, new Column(mode)]));
    container.replaceChildren(...MODES.map((mode) => this.columns[mode].root));
  }

  /**
   * Runs one prompt in every mode; returns the runs by their mode.
   *
   * They share the prompt, the sampling and the seed, but no cache. Throws what a run throws; the others are then
   * not begun, or stopped.
   */
  async run(values, model, { atOnce, announce, newRow, ...means }) {
    this.container.hidden = false;
    for (const column of Object.values(this.columns)) column.reset();
    const salt = crypto.getRandomValues(new Uint32Array(2)).join("-");
    const seed = values.seed ?? Math.floor(Math.random() * SEEDS);
    const runs = {};
    const one = async (mode) => {
      const request = buildRequest(values, model, { mode, seed, cache_salt: `playground-${salt}-${mode}` });
      runs[mode] = await play(request, { ...means, views: [this.columns[mode], newRow()] });
      this.#conclude(runs);
    };
    if (atOnce) {
      announce("Comparing all three at once…");
      await allOrNone(MODES.map(one));
    } else {
      for (const mode of MODES) {
        announce(`Comparing: ${MODE_NAMES[mode]}…`);
        await one(mode);
      }
    }
    return runs;
  }

  #conclude(runs) {
    for (const [mode, run] of Object.entries(runs)) this.columns[mode].conclude(run, runs.plain);
  }
}

/** How many times as fast as plain decoding a run was, in tokens per second. */
export function speedUp(run, plain) {
  return speed(run) / speed(plain);
}

/** What to say of a run's text beside plain decoding's. */
export function verdictOnText(run, plain) {
  if (run.mode === "plain") return "The baseline.";
  const at = firstDifference(run, plain);
  if (at === null) return "✓ The same as plain, token for token.";
  const rescued = run.counts.rescued ? `${plural(run.counts.rescued, "token")} rescued (${percent(rescuedShare(run))}). ` : "";
  if (run.mode === "fly") return `${rescued}Differs from plain from token ${at + 1} on.`;
  return `✗ Differs from plain from token ${at + 1} on: two choices may be equal to within rounding.`;
}

/** Waits for all; if one fails, so do all, once every one has ended. */
async function allOrNone(runs) {
  const failed = (await Promise.allSettled(runs)).find(({ status }) => status === "rejected");
  if (failed) throw failed.reason;
}

class Column {
  constructor(mode) {
    const tokens = element("div", { className: "tokens" });
    this.clock = element("span", { className: "clock" }, clock(0));
    this.values = ["Tokens/s", "Speed-up", "Tau"].map((name) => [name, element("dd", {}, UNKNOWN)]);
    this.note = element("p", { className: "verdict-on-text" });
    this.root = element(
      "div",
      { className: "column", "data-mode": mode },
      element("div", { className: "column-head" }, element("h3", {}, MODE_NAMES[mode]), this.clock),
      element("div", { className: "pane" }, tokens),
      element("dl", { className: "outcome" }, ...this.values.flatMap(([name, dd]) => [element("dt", {}, name), dd])),
      this.note,
    );
    this.tokens = new TokenView(tokens, MODE_NAMES[mode]);
  }

  reset() {
    this.tokens.reset(NATS);
    this.clock.textContent = clock(0);
    this.note.textContent = "";
    for (const [, dd] of this.values) dd.textContent = UNKNOWN;
  }

  start(run) {
    this.tokens.reset(run.measure);
    const startedAt = performance.now();
    const tick = () => {
      this.clock.textContent = clock((performance.now() - startedAt) / 1000);
      this.frame = requestAnimationFrame(tick);
    };
    tick();
  }

  update(run, added) {
    this.tokens.append(added);
  }

  end(run) {
    cancelAnimationFrame(this.frame);
    if (run.statistics) this.clock.textContent = clock(run.statistics.total_s);
    else this.note.textContent = "Not finished.";
  }

  conclude(run, plain) {
    const figures = [speed(run).toFixed(1), plain ? `${speedUp(run, plain).toFixed(2)}×` : UNKNOWN, tauOf(run)];
    this.values.forEach(([, dd], index) => (dd.textContent = figures[index]));
    this.note.textContent = plain ? verdictOnText(run, plain) : "";
  }
}

function tauOf({ statistics }) {
  return statistics.tau ? statistics.tau.toFixed(2) : UNKNOWN;
}
