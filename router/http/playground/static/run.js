/* One run: what has come of it so far, and the figures that follow: pure. */

export const VERDICTS = ["exact", "rescued", "corrected", "bonus", "plain"];
export const NATS = "nats";
export const MODE_NAMES = { plain: "Plain", exact: "Exact", fly: "FLy" };

/** A run before its first token; `measure` is the unit of entropies under its rule, nats unless the rule is FLy's. */
export function startRun(request, measure = NATS) {
  const { mode, draft_length: draftLength = null } = request.body.speculation;
  return {
    mode,
    draftLength,
    measure: mode === "fly" ? measure : NATS,
    text: "",
    tokens: [],
    rounds: [],
    counts: Object.fromEntries(VERDICTS.map((verdict) => [verdict, 0])),
    statistics: null,
    warnings: [],
    finishReason: null,
  };
}

/** Adds a chunk to a run and returns the tokens that are new, each with its place and its round. */
export function absorb(run, chunk) {
  const choice = chunk.choices?.[0];
  const { tokens = [], rounds = [], statistics, warnings = [] } = chunk.flyserve ?? {};
  run.text += choice?.text ?? choice?.delta?.content ?? "";
  run.finishReason = choice?.finish_reason ?? run.finishReason;
  run.statistics = statistics ?? run.statistics;
  run.warnings.push(...warnings);
  run.rounds.push(...rounds);
  const round = run.rounds.at(-1)?.index ?? null;
  const added = tokens.map((token, offset) => ({ ...token, round, index: run.tokens.length + offset }));
  for (const token of added) run.counts[token.verdict] += 1;
  run.tokens.push(...added);
  return added;
}

/** Tokens per second of a finished run. */
export function speed(run) {
  const { emitted, total_s: totalS } = run.statistics;
  return totalS > 0 ? emitted / totalS : 0;
}

/** Tokens kept by the rule although the target would have taken others, as a share of all. */
export function rescuedShare(run) {
  return run.tokens.length ? run.counts.rescued / run.tokens.length : 0;
}

/** Where two runs part: the index of the first token that differs, or null where they are the same. */
export function firstDifference(run, other) {
  const length = Math.max(run.tokens.length, other.tokens.length);
  for (let index = 0; index < length; index += 1) {
    if (run.tokens[index]?.id !== other.tokens[index]?.id) return index;
  }
  return null;
}

/** Why first mismatches were rejected, most frequent first: pairs of reason and count. */
export function rejections(statistics) {
  return ["gate", "window", "tail", "guard", "exact"]
    .map((reason) => [reason, statistics[`rejected_by_${reason}`] ?? 0])
    .filter(([, count]) => count > 0)
    .sort(([, one], [, other]) => other - one);
}
