/* What the form says, as a request and as a curl command: pure. */

const RULE_FIELDS = ["preset", "window", "threshold", "tail"];
const DRAFT_FIELDS = ["draft_length", "sub_drafter"];

/**
 * The request that a form's values make.
 *
 * Blank fields are left out: the deployment's defaults stand in for them. So are those that have no effect in the mode.
 */
export function buildRequest(values, model, changes = {}) {
  const { mode = values.mode, ...rest } = changes;
  const body = {
    model,
    ...promptOf(values),
    ...said(values, ["max_tokens", "temperature", "top_p", "seed"]),
    stream: true,
    verdicts: true,
    speculation: speculationOf(values, mode),
    ...rest,
  };
  return { path: values.send_as === "chat" ? "v1/chat/completions" : "v1/completions", body };
}

function promptOf({ prompt, send_as: sendAs }) {
  if (sendAs === "chat") return { messages: [{ role: "user", content: prompt }] };
  return { prompt };
}

function speculationOf(values, mode) {
  if (mode === "plain") return { mode };
  const fields = mode === "fly" ? [...RULE_FIELDS, ...DRAFT_FIELDS] : DRAFT_FIELDS;
  return { mode, ...said(values, fields) };
}

function said(values, names) {
  return Object.fromEntries(names.filter((name) => values[name] !== null).map((name) => [name, values[name]]));
}

/** The same request for a shell. */
export function toCurl(request, base, needsKey = false) {
  return [
    `curl -N ${new URL(request.path, base)}`,
    "-H 'Content-Type: application/json'",
    ...(needsKey ? ['-H "Authorization: Bearer $FLYSERVE_TOKEN"'] : []),
    `-d ${quoted(JSON.stringify(request.body, null, 2))}`,
  ].join(" \\\n  ");
}

function quoted(text) {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}
