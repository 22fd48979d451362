"""Links of the documents lead to something, and five jobs are two clicks from the README."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[3]
PAGES = sorted(path for folder in ("", "docs/**/", "helm/flyserve/") for path in ROOT.glob(f"{folder}*.md"))
JOBS = {
    "deploy 70B": "Llama-3.3-70B",
    "own pair": "flyserve bench",
    "slow request": "traceparent",
    "policy": "POLICIES",
    "accuracy": "What FLy loses",
}
"""Words of a link, and of the page on which its job is done."""


def links(page: Path) -> Iterator[str]:
    """Yield the targets of a page's links and pictures, except those to the web."""
    for block in MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8")):
        for child in block.children or ():
            target = str(child.attrGet("href") or child.attrGet("src") or "")
            if target and not re.match("https?:|mailto:", target):
                yield target


def anchors(page: Path) -> set[str]:
    """Return the anchors that a page's headings get on GitHub."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_to_a_heading_of_it(page: Path) -> None:
    for target in links(page):
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        assert not anchor or file.suffix != ".md" or anchor in anchors(file), target


@pytest.mark.parametrize(("words", "content"), JOBS.items())
def test_a_job_is_found_within_two_clicks(words: str, content: str) -> None:
    readme = ROOT / "README.md"
    rows = [row for row in readme.read_text(encoding="utf-8").splitlines() if words in row]
    first = {ROOT / target for row in rows for target in re.findall(r"\]\(([^)#]+)", row)}
    second = {page.parent / target.partition("#")[0] for page in first for target in links(page)}
    assert any(content in page.read_text(encoding="utf-8") for page in first | second if page.suffix == ".md")


def test_the_index_has_every_guide() -> None:
    index = ROOT / "docs" / "README.md"
    found = {(index.parent / target).resolve() for target in links(index)}
    guides = {
        page for page in PAGES if "docs" in page.parts and page.parent.name not in ("benchmarks", "decisions")
    }
    assert guides - {index} <= found
