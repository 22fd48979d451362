"""Actions of a user on the playground's page."""

from playwright.sync_api import Page, expect

WIDE = {"width": 1280, "height": 900}
NARROW = {"width": 390, "height": 844}

# Records the number of tokens whenever some are added, and every layout shift except words that wrap to the
# next line as they grow, and those of less than a pixel: a shift's value is a share of the screen's area.
WATCH = """async () => {
  // The first run shows these parts, which is no shift.
  for (const id of ["figures", "details-line", "rounds-section", "comparison"]) {
    document.getElementById(id).hidden = false;
  }
  for (let frames = 0; frames < 2; frames += 1) await new Promise(requestAnimationFrame);
  window.lengths = [];
  window.shifts = [];
  const list = document.getElementById("tokens");
  new MutationObserver(() => window.lengths.push(list.children.length)).observe(list, { childList: true });
  const describe = ({ node }) => node?.id || node?.className || node?.nodeName;
  const isVisible = (value) => value >= 1 / window.innerHeight;
  const isWord = ({ node }) => (node?.closest ? node : node?.parentElement)?.closest(".tokens");
  const note = (entries) => entries.getEntries().forEach(({ value, sources }) => {
    if (isVisible(value) && !sources.every(isWord)) window.shifts.push([value, sources.map(describe)]);
  });
  new PerformanceObserver(note).observe({ type: "layout-shift" });
}"""


def ready(page: Page) -> None:
    """Wait until the page has loaded the deployment's info."""
    expect(page.locator("#served")).to_contain_text("FlyServe")


def generate(page: Page, prompt: str) -> None:
    """Enter a prompt and start its response."""
    page.get_by_label("Prompt", exact=True).fill(prompt)
    page.get_by_role("button", name="Generate").click()


def is_done(page: Page) -> None:
    """Wait until the page reports success."""
    expect(page.get_by_role("status")).to_contain_text("Done: ")


def style(page: Page, selector: str, name: str = "color") -> str:
    """Return a computed style property of the first matching element."""
    read = "(element, name) => getComputedStyle(element).getPropertyValue(name)"
    return str(page.locator(selector).first.evaluate(read, name))
