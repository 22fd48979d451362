"""The check of sentences and lines: what it finds, and what it leaves alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.prose import MAX_COLUMNS, MAX_WORDS, complaints

LONG = "a " * MAX_WORDS + "end."
WIDE = "w" * (MAX_COLUMNS + 1)


@pytest.mark.parametrize(
    ("page", "line"),
    [
        (f"# Title\n\nShort. {LONG}\n", 3),
        (f"- A list.\n- {LONG}\n", 2),
        (LONG.replace("end.", "a [link\nwith words](page.md)."), 1),
        (f"> {LONG}", 1),
        (f"Fine.\n{WIDE}\n", 2),
    ],
)
def test_what_is_too_long_is_found_with_its_line(page: str, line: int) -> None:
    (found,) = complaints(page)
    assert found.line == line


@pytest.mark.parametrize(
    "page",
    [
        f"```sh\n{WIDE}\n{LONG}\n```\n",
        f"| a |\n|---|\n| {LONG} {WIDE} |\n",
        f"[a link](https://example.com/{WIDE})\n",
        f"Run `{LONG}` now.\n",
        f"Measured at commit 0a1b2c3d.\n\n{LONG}\n",
        f"# Metrics\n\nGenerated from the registries; do not edit.\n\n{LONG}\n",
        f"<!-- {WIDE} {LONG} -->\n",
    ],
)
def test_code_tables_links_and_generated_pages_are_free(page: str) -> None:
    assert list(complaints(page)) == []


@given(st.lists(st.integers(1, 60), min_size=1, max_size=6))
def test_sentences_are_counted_one_by_one(lengths: list[int]) -> None:
    sentences = [" ".join(["Word", *["word"] * (length - 1)]) + "." for length in lengths]
    lines = "\n".join("\n".join(sentence.split()) for sentence in sentences)
    assert len(list(complaints(lines))) == sum(length > MAX_WORDS for length in lengths)
