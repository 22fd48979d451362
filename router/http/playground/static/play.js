/* One request from its first chunk to its last, reported to its views. */

import { stream } from "./api.js";
import { absorb, startRun } from "./run.js";

/**
 * Plays a request and returns its run, complete.
 *
 * Every view gets `start(run)`, `update(run, newTokens)` for each chunk, and `end(run)`, also after an error.
 * Throws a Failure, or an AbortError where `signal` says so.
 */
export async function play(request, { views, measure, signal }) {
  const run = startRun(request, measure);
  for (const view of views) view.start(run);
  try {
    for await (const chunk of stream(request, signal)) {
      const added = absorb(run, chunk);
      for (const view of views) view.update(run, added);
    }
    return run;
  } finally {
    for (const view of views) view.end(run);
  }
}
