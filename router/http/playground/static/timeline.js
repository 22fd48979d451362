/* Rounds on a time axis, one row a run. */

import { axisFor, partsOf, roundAt } from "./axis.js";
import { hideCard, showCard } from "./card.js";
import { element, shape } from "./dom.js";
import { duration, plural, tickLabel } from "./format.js";
import { MODE_NAMES } from "./run.js";

const MOST_ROWS = 4;
const NARROW_PX = 480;
const HEIGHTS = { draft: 0.6, verify: 1, wire: 0.24 };
const STEPS = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 };

/** The last few runs; each that starts gets a row, and the oldest goes. */
export class Timeline {
  constructor(container) {
    this.container = container;
    this.rows = [];
    this.axis = shape("svg", { class: "axis", "aria-hidden": "true" });
    this.clear();
  }

  clear() {
    hideCard();
    this.rows = [];
    this.#layOut();
  }

  /** A view of one run, updated while it runs. */
  row() {
    const row = new Row(() => this.#scale());
    return {
      start: (run) => {
        this.rows = [...this.rows, row].slice(-MOST_ROWS);
        row.start(run);
        this.#layOut();
      },
      update: (run) => row.update(run),
      end: (run) => {
        row.update(run);
        if (!run.rounds.length) this.#drop(row);
      },
    };
  }

  #drop(row) {
    this.rows = this.rows.filter((other) => other !== row);
    this.#layOut();
  }

  #layOut() {
    this.container.closest("section").hidden = !this.rows.length;
    this.container.replaceChildren(...this.rows.flatMap((row) => row.elements), this.axis);
    this.#scale();
  }

  #scale() {
    const mostTicks = this.container.clientWidth < NARROW_PX ? 3 : 6;
    const { end, ticks } = axisFor(Math.max(...this.rows.map((row) => row.length), 0), mostTicks);
    for (const row of this.rows) row.scale(end);
    this.axis.replaceChildren(...ticks.flatMap((time) => tick(time, end)));
  }
}

class Row {
  constructor(onGrowth) {
    this.onGrowth = onGrowth;
    this.rounds = [];
    this.length = 0;
    this.end = 1;
    this.at = 0;
    this.name = element("span", { className: "name" });
    this.total = element("span", { className: "total" });
    this.bars = shape("g");
    this.mark = shape("rect", { class: "chosen", "vector-effect": "non-scaling-stroke", visibility: "hidden" });
    this.track = shape("rect", { class: "track", height: 1 });
    this.svg = shape("svg", { preserveAspectRatio: "none" }, this.track, this.bars, this.mark);
    this.#listen();
  }

  get elements() {
    return [this.name, this.svg, this.total];
  }

  start(run) {
    this.name.textContent = [MODE_NAMES[run.mode], run.draftLength].filter((part) => part !== null).join(" ");
    this.total.textContent = "…";
    this.svg.setAttribute("aria-label", `Rounds of the run ${this.name.textContent}`);
  }

  update(run) {
    const added = run.rounds.slice(this.rounds.length);
    this.rounds = [...run.rounds];
    this.bars.append(...added.flatMap(barsOf));
    this.length = Math.max(run.statistics?.total_s ?? 0, this.rounds.at(-1)?.end_s ?? 0);
    if (this.length) this.total.textContent = duration(this.length);
    if (added.length) this.#becomeWalkable();
    this.onGrowth();
  }

  scale(end) {
    this.end = end;
    this.svg.setAttribute("viewBox", `0 0 ${end} 1`);
    this.track.setAttribute("width", this.length);
  }

  #listen() {
    this.svg.addEventListener("pointermove", (event) => this.#point(event));
    this.svg.addEventListener("pointerleave", () => this.#leave({ soon: true }));
    this.svg.addEventListener("focus", () => this.#show(this.at));
    this.svg.addEventListener("blur", () => this.#leave());
    this.svg.addEventListener("keydown", (event) => this.#walk(event));
  }

  #becomeWalkable() {
    const { svg } = this;
    svg.setAttribute("tabindex", "0");
    svg.setAttribute("role", "slider");
    svg.setAttribute("aria-valuemin", "1");
    svg.setAttribute("aria-valuemax", this.rounds.length);
    this.#announce();
  }

  #announce() {
    const round = this.rounds[this.at];
    this.svg.setAttribute("aria-valuenow", this.at + 1);
    this.svg.setAttribute("aria-valuetext", `Round ${this.at + 1}: ${sentence(round)}`);
  }

  #point(event) {
    const { left, width } = this.svg.getBoundingClientRect();
    const round = roundAt(this.rounds, ((event.clientX - left) / width) * this.end);
    if (round) this.#show(this.rounds.indexOf(round));
  }

  #walk(event) {
    const last = this.rounds.length - 1;
    const there = { Home: 0, End: last }[event.key] ?? this.at + (STEPS[event.key] ?? NaN);
    if (!(there >= 0 && there <= last)) return;
    event.preventDefault();
    this.#show(there);
  }

  #show(at) {
    const round = this.rounds[at];
    if (!round) return;
    this.at = at;
    this.#announce();
    const { start_s: x, end_s: end } = round;
    for (const [name, value] of Object.entries({ x, y: 0, width: end - x, height: 1, visibility: "visible" })) {
      this.mark.setAttribute(name, value);
    }
    showCard(this.svg, this.mark.getBoundingClientRect(), describe(round));
  }

  #leave(how) {
    this.mark.setAttribute("visibility", "hidden");
    hideCard(how);
  }
}

/** The card of one round. */
export function describe(round) {
  const parts = Object.entries(PART_NAMES).map(([kind, name]) => [name, duration(round[`${kind}_s`])]);
  const span = `${duration(round.start_s)} to ${duration(round.end_s)}`;
  return { title: `Round ${round.index + 1}`, sentence: sentence(round), rows: [...parts, ["From, to", span]] };
}

const PART_NAMES = { draft: "Draft", verify: "Verify", wire: "Wire, queues" };

/** The legend: the parts of a round. */
export function phaseEntries() {
  return Object.entries(PART_NAMES).map(([kind, name]) =>
    element("li", {}, element("span", { className: `phase ${kind}` }), name),
  );
}

function sentence({ drafted, accepted }) {
  return drafted ? `${plural(drafted, "token")} drafted, ${accepted} accepted.` : "No draft.";
}

function barsOf(round) {
  return partsOf(round).map(({ kind, start, length }) =>
    shape("rect", { class: kind, x: start, y: 1 - HEIGHTS[kind], width: length, height: HEIGHTS[kind] }),
  );
}

function tick(time, end) {
  const x = `${(time / end) * 100}%`;
  const anchor = time === 0 ? "start" : "middle";
  return [
    shape("line", { x1: x, x2: x, y1: 0, y2: 5 }),
    shape("text", { x, y: 18, "text-anchor": anchor }, tickLabel(time, end)),
  ];
}
