"""`python -m tools.prose`: check that sentences and lines of README.md and docs/ are short."""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parent.parent
MAX_WORDS = 30
MAX_COLUMNS = 120

_MARKDOWN = MarkdownIt("commonmark").enable("table")
_GENERATED = re.compile(r"\A(Measured at commit |# .*\n\n(Every metric\.|)\s*Generated )")
_END_OF_SENTENCE = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[\"'(]*[A-Z0-9])")
_TARGET_OF_LINK = re.compile(r"(?<=\])\([^)\s]*\)|<?https?://\S+")


@dataclass(frozen=True, slots=True)
class Complaint:
    """A sentence or a line that is too long.

    Attributes:
        line: Number of the line in the page; of a sentence, the first line of its paragraph.
    """

    line: int
    text: str


def main(arguments: Sequence[str]) -> int:
    """Print every complaint about the given pages, or about all; return the exit status."""
    pages = [Path(argument).resolve() for argument in arguments] or all_pages()
    found = [
        f"{page.relative_to(ROOT)}:{complaint.line}: {complaint.text}"
        for page in pages
        for complaint in complaints(page.read_text(encoding="utf-8"))
    ]
    print("\n".join(found), end="\n" if found else "")
    return bool(found)


def all_pages() -> list[Path]:
    """Return README.md and the pages of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def complaints(page: str) -> Iterator[Complaint]:
    """Yield what is too long in the prose of a page; code, tables and generated pages are free."""
    if _GENERATED.match(page):
        return
    lines = page.splitlines()
    for token in _prose(_MARKDOWN.parse(page)):
        assert token.map is not None, "an inline token has lines"
        begin, end = token.map
        for number in range(begin, end):
            if (columns := len(_TARGET_OF_LINK.sub("", lines[number]))) > MAX_COLUMNS:
                yield Complaint(number + 1, f"{columns} columns, at most {MAX_COLUMNS}: wrap the line")
        for sentence in _END_OF_SENTENCE.split(_text(token)):
            if (words := len(sentence.split())) > MAX_WORDS:
                yield Complaint(begin + 1, f"{words} words, at most {MAX_WORDS}: split {sentence!r}")


def _prose(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield the inline tokens outside tables."""
    is_table = False
    for token in tokens:
        if token.type in ("table_open", "table_close"):
            is_table = token.type == "table_open"
        elif token.type == "inline" and not is_table:
            yield token


def _text(inline: Token) -> str:
    """Return the text as a reader sees it; a piece of code counts as one word."""
    parts = {"softbreak": " ", "hardbreak": " ", "code_inline": "Code"}
    return "".join(
        parts.get(token.type, token.content) for token in inline.children or () if token.type != "html_inline"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
