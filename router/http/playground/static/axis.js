/* The geometry of rounds in time: pure. */

const STEPS = [1, 2, 5, 10];
const PARTS = ["draft", "verify", "wire"];

/**
 * The parts of a round in seconds, one after the other: what it was spent on, from when, and for how long.
 *
 * A draft that was made ahead may have taken longer than the round; the bars then share what there is of it.
 */
export function partsOf(round) {
  const lengths = PARTS.map((kind) => round[`${kind}_s`]);
  const sum = lengths.reduce((total, length) => total + length, 0);
  const fit = sum > 0 ? Math.min(1, (round.end_s - round.start_s) / sum) : 1;
  let start = round.start_s;
  return PARTS.map((kind, index) => {
    const part = { kind, start, length: lengths[index] * fit };
    start += part.length;
    return part;
  });
}

/** The round that is going on at a time in seconds, or the nearest; null without rounds. */
export function roundAt(rounds, time) {
  const distance = ({ start_s: start, end_s: end }) => Math.max(start - time, time - end, 0);
  return rounds.reduce((best, round) => (best && distance(best) <= distance(round) ? best : round), null);
}

/** An axis from 0 to at least `longest` seconds: its end and the times of its ticks, at most this many after the first. */
export function axisFor(longest, mostTicks) {
  const least = Math.max(longest, 0.01) / mostTicks;
  const power = 10 ** Math.floor(Math.log10(least));
  const step = power * STEPS.find((factor) => factor * power >= least * (1 - 1e-9));
  const count = Math.ceil(Math.max(longest, 0.01) / step - 1e-9);
  return { end: count * step, ticks: Array.from({ length: count + 1 }, (_, index) => index * step) };
}
