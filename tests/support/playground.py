"""The playground's page as a person uses it."""

from playwright.sync_api import Page, expect

WIDE = {"width": 1280, "height": 900}
NARROW = {"width": 390, "height": 844}

# Notes how many tokens there are whenever some are added, and every shift of the layout but for words that go
# to the next line as they grow.
WATCH = """() => {
  window.lengths = [];
  window.shifts = [];
  const list = document.getElementById("tokens");
  new MutationObserver(() => window.lengths.push(list.children.length)).observe(list, { childList: true });
  const told = ({ node }) => node?.id || node?.className || node?.nodeName;
  const isWord = ({ node }) => (node?.closest ? node : node?.parentElement)?.closest(".tokens");
  const note = (entries) => entries.getEntries().forEach(({ value, sources }) => {
    if (!sources.every(isWord)) window.shifts.push([value, sources.map(told)]);
  });
  new PerformanceObserver(note).observe({ type: "layout-shift" });
}"""


def ready(page: Page) -> None:
    """Waits until the page knows what is served."""
    expect(page.locator("#served")).to_contain_text("FlyServe")


def generate(page: Page, prompt: str) -> None:
    """Types a prompt and begins its response."""
    page.get_by_label("Prompt", exact=True).fill(prompt)
    page.get_by_role("button", name="Generate").click()


def is_done(page: Page) -> None:
    """Waits until the page says that all went well."""
    expect(page.get_by_role("status")).to_contain_text("Done: ")


def style(page: Page, selector: str, name: str = "color") -> str:
    """A property of the first such element, as it is computed."""
    read = "(element, name) => getComputedStyle(element).getPropertyValue(name)"
    return str(page.locator(selector).first.evaluate(read, name))
