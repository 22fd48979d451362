"""The snippets and commands of the documents, and the marks in the comments above them."""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import ROOT

README = ROOT / "README.md"
DOCUMENTS = sorted(
    path
    for folder in ("", "docs/", "docs/engines/", "docs/kubernetes/", "demo/**/", "helm/**/")
    for path in ROOT.glob(f"{folder}*.md")
)
GUIDES = [path for path in DOCUMENTS if path != README]
_BLOCK = re.compile(
    r"(?:^ *<!-- (?P<mark>[^\n]*?) -->\n)?"
    r"^(?P<indent> *)```(?P<language>\w*)(?P<needs> \w+)?\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_INLINE = re.compile(r"`((?:flyserve|make|python -m) [^`\n]+)`")
_FIGURES = {"", "mermaid", "text"}
"""Languages of figures, which are not run."""


@dataclass(frozen=True, slots=True)
class Snippet:
    """A block of code.

    Attributes:
        mark: Text of the comment before it: `not run: reason`, `prints: output`, or empty.
        needs: What the tests do not have, after the language: `hub`, or `slow` for minutes; or empty.
    """

    place: str
    language: str
    code: str
    mark: str
    needs: str = ""

    @property
    def reason(self) -> str | None:
        """Return the reason why it is not run; None if it is run."""
        kind, _, reason = self.mark.partition(": ")
        return reason.strip() if kind == "not run" else None

    @property
    def prints(self) -> str:
        """Return the text that its output must contain."""
        kind, _, output = self.mark.partition(": ")
        return output if kind == "prints" else ""


def snippets(*pages: Path) -> list[Snippet]:
    """Return all blocks of these pages, or of all documents, except figures."""
    found = (snippet for path in pages or DOCUMENTS for snippet in _snippets(path))
    return [snippet for snippet in found if snippet.language not in _FIGURES]


def commands() -> list[str]:
    """Return every command that the documents mention, once."""
    return sorted({found for path in DOCUMENTS for found in _INLINE.findall(path.read_text("utf-8"))})


def _snippets(path: Path) -> Iterator[Snippet]:
    text = path.read_text("utf-8")
    for found in _BLOCK.finditer(text):
        line = text[: found.start()].count("\n") + 1
        code = textwrap.dedent(found["code"])
        needs = (found["needs"] or "").strip()
        yield Snippet(f"{path.relative_to(ROOT)}:{line}", found["language"], code, found["mark"] or "", needs)
