/* A response as tokens that can be pointed at and walked through. */

import { hideCard, showCard } from "./card.js";
import { element } from "./dom.js";
import { quotedToken } from "./format.js";
import { NATS } from "./run.js";

/** What each verdict means, for the legend and in full. */
export const MEANINGS = {
  exact: ["as drafted", "Drafted, and the target’s own choice."],
  rescued: [
    "kept by FLy",
    "Drafted, and kept although the target would have taken another: it was unsure here, and agreed with what follows.",
  ],
  corrected: ["by the target", "The target’s choice in place of a draft that was rejected."],
  bonus: ["one more", "The target’s own next token, after all that was drafted was kept."],
  plain: ["no draft", "The target’s choice in a round without a draft."],
};

const STEPS = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1 };

/** A list of tokens in `container`: one tab stop, arrow keys walk, a card describes the token under the pointer or with the focus. */
export class TokenView {
  constructor(container, label) {
    this.container = container;
    this.label = label;
    this.tokens = [];
    this.measure = NATS;
    this.follows = true;
    container.addEventListener("pointerover", (event) => this.#point(event));
    container.addEventListener("pointerleave", () => hideCard({ soon: true }));
    container.addEventListener("focusin", (event) => this.#focus(event.target));
    container.addEventListener("focusout", () => hideCard());
    container.addEventListener("keydown", (event) => this.#walk(event));
    container.addEventListener("scroll", () => this.#scrolled(), { passive: true });
  }

  /** Empties the list for another run. */
  reset(measure) {
    hideCard();
    this.measure = measure;
    this.follows = true;
    this.tokens = [];
    this.container.replaceChildren();
    for (const name of ["role", "aria-label"]) this.container.removeAttribute(name);
  }

  /** Adds tokens at the end, and stays at the end unless someone scrolled away. */
  append(tokens) {
    if (!tokens.length) return;
    if (!this.tokens.length) {
      this.container.setAttribute("role", "listbox");
      this.container.setAttribute("aria-label", `${this.label}, token by token`);
    }
    this.container.append(...tokens.map((token) => tokenElement(token)));
    if (!this.tokens.length) this.container.firstElementChild.tabIndex = 0;
    this.tokens.push(...tokens);
    if (this.follows) this.container.scrollTop = this.container.scrollHeight;
  }

  #point(event) {
    const shown = event.target.closest(".token");
    if (shown) this.#show(shown, rectangleAt(shown, event));
    else hideCard({ soon: true });
  }

  #focus(shown) {
    this.container.querySelector('[tabindex="0"]')?.setAttribute("tabindex", "-1");
    shown.tabIndex = 0;
    shown.scrollIntoView({ block: "nearest" });
    this.#show(shown, shown.getClientRects()[0]);
  }

  #show(shown, rectangle) {
    showCard(shown, rectangle, describe(this.tokens[Number(shown.dataset.index)], this.measure));
  }

  #walk(event) {
    const here = Number(event.target.dataset.index);
    const last = this.tokens.length - 1;
    const there = { Home: 0, End: last }[event.key] ?? here + (STEPS[event.key] ?? NaN);
    if (!(there >= 0 && there <= last)) return;
    event.preventDefault();
    this.container.children[there].focus({ preventScroll: true });
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.container;
    this.follows = scrollTop + clientHeight > scrollHeight - 4;
  }
}

/** The card of one token. */
export function describe(token, measure) {
  const rows = [
    ["Target’s choice", token.choice ? `${quotedToken(token.choice.text)} (${token.choice.id})` : "the same"],
    ["Entropy", token.entropy === null ? "–" : `${token.entropy.toFixed(3)} ${measure}`],
    ["Token id", String(token.id)],
    ["Decided in round", token.round === null ? "–" : String(token.round + 1)],
  ];
  const title = `${quotedToken(token.text)} ${token.verdict}`;
  return { title, verdict: token.verdict, sentence: MEANINGS[token.verdict][1], rows };
}

/** The legend: one entry a verdict, each with a count that is set later. */
export function legendEntries() {
  return Object.entries(MEANINGS).map(([verdict, [short]]) =>
    element(
      "li",
      { title: short },
      element("span", { className: verdict }, element("span", { className: "ink" }, verdict)),
      element("span", { className: "count", "data-verdict": verdict }, "0"),
    ),
  );
}

function tokenElement(token) {
  const name = `${quotedToken(token.text)}, ${token.verdict}`;
  const [, space, ink] = token.text.match(/^(\s*)(.*)$/s);
  const marked = element("span", { className: "ink" }, ink || space);
  const shown = element("span", { className: `token ${token.verdict}`, tabIndex: -1 }, ...(ink ? [space, marked] : [marked]));
  shown.dataset.index = String(token.index);
  shown.setAttribute("role", "option");
  shown.setAttribute("aria-label", name);
  if (token.text === "") shown.dataset.sign = "∅";
  if (token.text.startsWith("\n")) shown.dataset.sign = "↵";
  return shown;
}

/** The part of a token, which may break over lines, that the pointer is on. */
function rectangleAt(shown, event) {
  const parts = [...shown.getClientRects()];
  return parts.find(({ top, bottom }) => event.clientY >= top && event.clientY <= bottom) ?? parts[0];
}
