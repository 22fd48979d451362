/* The router's HTTP API: what it serves, and one streamed response. */

import { Failure, broken, failureOf, unreachable } from "./failure.js";
import { askForKey, authorization } from "./key.js";
import { eventsOf } from "./sse.js";

const END_OF_STREAM = "[DONE]";

/** The model that is served and the router's version. */
export async function served() {
  const [models, version] = await Promise.all([getJson("v1/models"), getJson("version")]);
  return { model: models.data[0].id, version: version.version };
}

/** Defaults, limits and presets of this deployment. */
export function settings() {
  return getJson("playground/settings.json");
}

/**
 * The chunks of a streamed response.
 *
 * Throws a Failure where the router rejects, cannot be reached or breaks off; an AbortError where `signal` says so.
 */
export async function* stream(request, signal) {
  const response = await send(request.path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(request.body),
    signal,
  });
  let numTokens = 0;
  try {
    for await (const data of eventsOf(response)) {
      if (data === END_OF_STREAM) return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw failureOf(chunk.error);
      numTokens += chunk.flyserve?.tokens?.length ?? 0;
      yield chunk;
      signal?.throwIfAborted(); // what has already come is not shown after a stop
    }
  } catch (error) {
    throw isOurs(error) ? error : broken(numTokens);
  }
  throw broken(numTokens);
}

async function getJson(path) {
  return (await send(path)).json();
}

async function send(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: { ...options.headers, ...authorization() } });
  } catch (error) {
    throw isOurs(error) ? error : unreachable();
  }
  if (response.ok) return response;
  if (response.status === 401) askForKey();
  const body = await response.json().catch(() => null);
  throw failureOf(body?.error, response.status, response.headers.get("Retry-After"));
}

function isOurs(error) {
  return error instanceof Failure || error.name === "AbortError";
}
