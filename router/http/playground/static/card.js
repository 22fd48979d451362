/* The small card beside whatever is pointed at or focused. */

import { byId, element } from "./dom.js";

const GAP_PX = 8;
const LEAVE_MS = 120;

let owner = null;
let leaving = 0;

/** Shows a card beside a rectangle: a title, a sentence, and rows of name and value. */
export function showCard(anchor, rectangle, { title, verdict = "", sentence, rows }) {
  clearTimeout(leaving);
  const card = byId("card");
  card.replaceChildren(
    element("p", { className: `card-title ${verdict}` }, title),
    element("p", {}, sentence),
    element("dl", {}, ...rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)])),
  );
  if (owner !== anchor) {
    owner?.removeAttribute("aria-describedby");
    anchor.setAttribute("aria-describedby", "card");
    owner = anchor;
  }
  card.hidden = false;
  place(card, rectangle);
}

/** Hides the card, at once or unless the pointer reaches it soon. */
export function hideCard({ soon = false } = {}) {
  clearTimeout(leaving);
  if (soon) {
    leaving = setTimeout(hideCard, LEAVE_MS);
    return;
  }
  owner?.removeAttribute("aria-describedby");
  owner = null;
  byId("card").hidden = true;
}

/** Whether a card is shown. */
export function cardIsShown() {
  return !byId("card").hidden;
}

/** Lets the pointer rest on the card, and takes it away when the page moves under it. */
export function watchCard() {
  const card = byId("card");
  card.addEventListener("pointerenter", () => clearTimeout(leaving));
  card.addEventListener("pointerleave", () => hideCard({ soon: true }));
  addEventListener("resize", () => hideCard());
  addEventListener("scroll", follow, { passive: true, capture: true });
}

/** Keeps up with what is focused when something scrolls; what is merely pointed at has gone elsewhere. */
function follow() {
  if (owner === null) return;
  if (owner === document.activeElement && owner.classList.contains("token")) place(byId("card"), owner.getClientRects()[0]);
  else hideCard();
}

function place(card, rectangle) {
  const { width, height } = card.getBoundingClientRect();
  const most = document.body.clientWidth - width - GAP_PX;
  const middle = rectangle.left + rectangle.width / 2 - width / 2;
  const below = rectangle.bottom + GAP_PX;
  const fits = below + height + GAP_PX <= innerHeight;
  card.style.left = `${Math.max(GAP_PX, Math.min(middle, most))}px`;
  card.style.top = `${fits ? below : Math.max(GAP_PX, rectangle.top - height - GAP_PX)}px`;
}
