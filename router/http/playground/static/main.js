/* Puts the page together: form, response, rounds, comparison. */

import { served, settings } from "./api.js";
import { cardIsShown, hideCard, watchCard } from "./card.js";
import { Comparison, speedUp } from "./comparison.js";
import { Controls } from "./controls.js";
import { byId, enable } from "./dom.js";
import { Failure } from "./failure.js";
import { duration, plural } from "./format.js";
import { hasKey, onKey } from "./key.js";
import { play } from "./play.js";
import { buildRequest, toCurl } from "./request.js";
import { ResponseView } from "./response.js";
import { Timeline, phaseEntries } from "./timeline.js";

const controls = new Controls();
const response = new ResponseView();
const timeline = new Timeline(byId("timeline"));
const comparison = new Comparison(byId("comparison"));

let model = null;
let running = null;
let text = "";

/** Run work that `Stop` can end; an error is shown in one line. */
async function attempt(work, region) {
  if (running) return;
  running = new AbortController();
  showRunning(true);
  controls.absolve();
  if (region.getBoundingClientRect().top > innerHeight * 0.8) region.scrollIntoView({ block: "start" });
  try {
    if (model === null) await meet();
    await work({ measure: controls.measure, signal: running.signal });
  } catch (error) {
    showFailure(error);
  } finally {
    running = null;
    showRunning(false);
  }
}

async function generate(means) {
  announce("Generating…");
  let run = null;
  const remember = { start: (begun) => (run = begun), update() {}, end: () => (text = run.text) };
  const views = [response, timeline.row(), remember];
  await play(buildRequest(controls.values(), model), { ...means, views }).catch((error) => {
    if (run?.tokens.length && error.name === "AbortError") error.numTokens = run.tokens.length;
    throw error;
  });
  announce(`Done: ${plural(run.tokens.length, "token")} in ${duration(run.statistics.total_s)}.`);
}

async function compare(means) {
  const atOnce = byId("at_once").checked;
  const newRow = () => timeline.row();
  const runs = await comparison.run(controls.values(), model, { ...means, atOnce, announce, newRow });
  const [exact, fly] = [runs.exact, runs.fly].map((run) => `${speedUp(run, runs.plain).toFixed(2)}×`);
  announce(`Done: exact ${exact} and FLy ${fly} as fast as plain.`);
}

/** Learns what is served; the page is of use only then. */
async function meet() {
  const [{ model: id, version }, deployment] = await Promise.all([served(), settings()]);
  if (!controls.deployment) controls.describe(deployment, id);
  model = id;
  byId("served").textContent = `${id}, FlyServe ${version}`;
  showCurl();
}

function announce(message) {
  byId("status").textContent = message;
}

function showFailure(error) {
  if (error.name === "AbortError") {
    announce(error.numTokens ? `Stopped after ${plural(error.numTokens, "token")}.` : "Stopped.");
    return;
  }
  announce("");
  if (!(error instanceof Failure)) console.error(error);
  const remedy = error.remedy ?? "reload the page";
  showRunning(false);
  controls.blame(error);
  byId("error").textContent = `${error.message}: ${remedy}.`; // where it is now, a screen reader reads it
}

function showRunning(isRunning) {
  enable(byId("generate"), !isRunning);
  enable(byId("compare"), !isRunning);
  enable(byId("stop"), isRunning);
  byId("tokens").setAttribute("aria-busy", String(isRunning));
}

function showCurl() {
  try {
    const request = buildRequest(controls.values(), model);
    byId("curl").textContent = toCurl(request, document.baseURI, hasKey());
  } catch {
    byId("curl").textContent = ""; // no prompt, or a field that holds no number
  }
}

async function copy(content, source) {
  try {
    await navigator.clipboard.writeText(content);
    announce("Copied.");
  } catch {
    getSelection().selectAllChildren(source); // without a secure context the browser lets only people copy
    announce("Selected: copy it with Ctrl + C.");
  }
}

controls.form.addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(generate, byId("response"));
});
controls.form.addEventListener("input", showCurl);
onKey(() => {
  controls.absolve();
  meet().catch(showFailure);
});
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) controls.form.requestSubmit();
});
byId("compare").addEventListener("click", () => attempt(compare, byId("comparison-section")));
byId("stop").addEventListener("click", () => running?.abort());
byId("clear-rounds").addEventListener("click", () => {
  if (running) return;
  byId("response").focus({ preventScroll: true }); // the button goes with its section
  timeline.clear();
});
byId("copy-text").addEventListener("click", () => text && copy(text, byId("tokens")));
byId("copy-curl").addEventListener("click", () => copy(byId("curl").textContent, byId("curl")));
addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (cardIsShown()) hideCard();
  else running?.abort();
});

byId("phases").replaceChildren(...phaseEntries());
watchCard();
meet().catch(showFailure);
