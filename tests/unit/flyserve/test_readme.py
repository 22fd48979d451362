"""The README's Python snippets run as they stand, but for the address."""

import contextlib
import io
import re
from pathlib import Path

import pytest
from fake_generation import fake_generation

README = Path(__file__).parents[3] / "README.md"
SNIPPETS = [
    snippet
    for snippet in re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    if "from flyserve import" in snippet
]


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_a_snippet_runs(snippet: str) -> None:
    printed = io.StringIO()
    with fake_generation() as (_, address), contextlib.redirect_stdout(printed):
        exec(snippet.replace("127.0.0.1:50051", address), {"__name__": "__main__"})
    assert "the quick" in printed.getvalue()


def test_there_are_snippets() -> None:
    assert len(SNIPPETS) >= 2
