/* What went wrong, in one line, and what helps. */

/** A failed request: the message, a remedy, and the field that caused it. */
export class Failure extends Error {
  constructor(message, remedy, field = null) {
    super(message);
    this.remedy = remedy;
    this.field = field;
  }
}

/** The failure that OpenAI's error object means: of a whole response with its status, or in the midst of a stream. */
export function failureOf(error, status = null, retryAfter = null) {
  const message = error?.message || `the router answered ${status}`;
  const param = error?.param ?? null;
  const field = error?.code === "invalid_api_key" ? "api_key" : param && fieldOf(param);
  return new Failure(message, remedyFor(error?.code, status, param, retryAfter), field);
}

/** The failure of a request that had no answer. */
export function unreachable() {
  return new Failure("the router cannot be reached", "see whether it still runs, or start it with: flyserve up");
}

/** The failure of a stream that ended before it said so. */
export function broken(numTokens) {
  return new Failure(`the stream broke off after ${numTokens} tokens`, "generate again");
}

function remedyFor(code, status, param, retryAfter) {
  if (code === "invalid_api_key") return "give one that this deployment knows";
  if (code === "overloaded") return `try again in ${retryAfter ?? "a few"} s`;
  if (code === "not_ready") return "try again in a moment";
  if (code === "deadline_exceeded") return "ask for fewer tokens";
  if (status === 413) return "shorten the prompt";
  if (status === null || status >= 500) return "look into the router's log";
  return param ? `change ${fieldOf(param).replaceAll("_", " ")}` : "change the request";
}

/** The name of the form's field: the last part of a path such as speculation.window, without a part of the field. */
function fieldOf(param) {
  return param.replace(/\.(max|policy)$/, "").split(".").pop().replace(/\[.*$/, "");
}
