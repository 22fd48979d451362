"""Accessibility checks of every page: contrast of texts, and names of controls."""

from playwright.sync_api import Page

# WCAG 2.2, 1.4.3: every visible text against the first opaque background behind it. Colours are read back
# from a canvas, because a style may use any colour space. Disabled controls are exempt.
_FAINT_TEXTS = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = ([r, g, b]) => {
    const linear = (v) => (v <= 0.04045 * 255 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  };
  const background = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const found = rgba(getComputedStyle(at).backgroundColor);
      if (found[3] === 255) return found;
    }
    return [255, 255, 255, 255];
  };
  const faint = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility()) continue;
    if (element.closest("[aria-disabled=true], noscript, option")) continue;
    const style = getComputedStyle(element);
    const ink = rgba(element instanceof SVGElement ? style.fill : style.color);
    const [high, low] = [luminance(ink), luminance(background(element))].sort((a, b) => b - a);
    const contrast = (high + 0.05) / (low + 0.05);
    if (contrast < 4.5) faint.add(`${walker.currentNode.data.trim().slice(0, 30)}: ${contrast.toFixed(2)}`);
  }
  return [...faint];
}"""
_UNNAMED_CONTROLS = """() => [...document.querySelectorAll("button, input, select, textarea, [tabindex]")]
  .filter((e) => !e.labels?.length && !e.getAttribute("aria-label") && !e.textContent.trim())
  .map((e) => e.outerHTML.slice(0, 80))"""


def faint_texts(page: Page) -> list[str]:
    """Return the texts whose contrast with their background is below 4.5, with that contrast."""
    return list(page.evaluate(_FAINT_TEXTS))


def unnamed_controls(page: Page) -> list[str]:
    """Return the controls without a name for screen readers."""
    return list(page.evaluate(_UNNAMED_CONTROLS))
