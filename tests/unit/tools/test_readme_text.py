"""The README is a page, and its figures are those of the pages that it names."""

import re
from pathlib import Path

from tests.support.documents import README, snippets

BLOCKS = snippets(README)
TEXT = README.read_text(encoding="utf-8")
MAX_LINES = 150
MAX_FIGURES = 6


def test_blocks_that_a_test_cannot_run_are_few_and_say_what_they_need() -> None:
    assert {block.language for block in BLOCKS} == {"sh", "python"}
    assert [block.needs for block in BLOCKS if block.needs] == ["slow", "slow", "hub"]
    assert not any(block.mark for block in BLOCKS), "readers of the raw file see comments"


def test_it_is_a_page_and_no_manual() -> None:
    assert len(TEXT.splitlines()) <= MAX_LINES
    assert len(re.findall(r"\d\.\d+x", TEXT)) <= MAX_FIGURES


def test_each_figure_is_on_the_page_that_it_links() -> None:
    rows = re.findall(
        r"^\| [^|]+ \| (\d\.\d+x) \| (\d\.\d+x) \| \[[^]]+\]\(([^)#]+)#([^)]+)\) \|$", TEXT, re.M
    )
    assert 2 * len(rows) == len(re.findall(r"\d\.\d+x", TEXT))
    for exact, fly, page, anchor in rows:
        section = _section(README.parent / page, anchor)
        assert exact in section and fly in section, (page, anchor)


def test_the_accuracy_by_family_is_that_of_its_page() -> None:
    page = _section(README.parent / "docs/accuracy.md", "what-fly-loses")
    measured = re.findall(r"^\| harder \| [^|]+ \| (\d+\.\d%) \| (\d+\.\d%) \|", page, re.MULTILINE)
    assert len(measured) == 3
    shown = re.findall(r"^\| [^|]+ \| (\d+\.\d%) \| \**(\d+\.\d%)\** \|$", TEXT, re.MULTILINE)
    assert shown == measured


def _section(page: Path, anchor: str) -> str:
    """Return the text from the heading of an anchor to the next one of the same or a higher level."""
    parts = re.split(r"^(#+) (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = list(zip(parts[1::3], parts[2::3], parts[3::3], strict=True))
    names = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for _, title, _ in found]
    start = names.index(anchor)
    level = len(found[start][0])
    end = next((i for i in range(start + 1, len(found)) if len(found[i][0]) <= level), len(found))
    return "".join(text for _, _, text in found[start:end])
