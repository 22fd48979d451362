/* The API key: asked for where the router wants one, kept for as long as the page is open and nowhere else. */

import { byId } from "./dom.js";

/** The header that brings the key; none without one. */
export function authorization() {
  return hasKey() ? { Authorization: `Bearer ${byId("api_key").value}` } : {};
}

/** Whether there is one. */
export function hasKey() {
  return Boolean(byId("api_key")?.value);
}

/** Shows where to give it. */
export function askForKey() {
  byId("key").hidden = false;
}

/** Calls back whenever another one has been given. */
export function onKey(callback) {
  byId("api_key").addEventListener("change", callback);
}
