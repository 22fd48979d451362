/* Numbers and tokens as people read them: pure. */

/** Seconds, in the unit and precision that suit them. */
export function duration(seconds) {
  if (seconds < 0.0995) return `${(seconds * 1000).toFixed(seconds < 0.00995 ? 1 : 0)} ms`;
  return `${seconds.toFixed(seconds < 9.995 ? 2 : 1)} s`;
}

/** A running clock's time: always two decimals, so that it does not jump. */
export function clock(seconds) {
  return `${seconds.toFixed(2)} s`;
}

/** A time on an axis, in the one unit that suits the axis. */
export function tickLabel(seconds, end) {
  if (seconds === 0) return "0";
  return end < 1 ? `${Math.round(seconds * 1000)} ms` : `${Number(seconds.toFixed(1))} s`;
}

export function percent(share) {
  return `${(share * 100).toFixed(1)}%`;
}

export function plural(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}

/** A token's text in quotes, with white space made visible. */
export function quotedToken(text) {
  return text === "" ? "no text" : `“${text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣")}”`;
}
