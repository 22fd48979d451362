import io

import pytest
from rich.console import Console

from fly.types import Verdict
from flyserve.cli.verdicts import STYLES, coloured, legend, statistics_line
from flyserve.types import Chunk, Piece, Statistics, Token


def chunk(text: str, *verdicts: Verdict) -> Chunk:
    tokens = tuple(Token(index, verdict, index, 0.5) for index, verdict in enumerate(verdicts))
    return Chunk(text, tokens, "", 0, None, None, ())


def test_each_token_has_its_verdicts_colour() -> None:
    pieces = (Piece(0, "two"), Piece(1, " words"))
    text = coloured(chunk("two words", Verdict.EXACT, Verdict.RESCUED), lambda _: pieces)
    assert text.plain == "two words"
    assert [(span.start, span.end, span.style) for span in text.spans] == [
        (0, 3, STYLES[Verdict.EXACT]),
        (3, 9, STYLES[Verdict.RESCUED]),
    ]


@pytest.mark.parametrize(
    "pieces",
    [(Piece(0, "two words"),), (Piece(0, "two"), Piece(9, " words")), (Piece(0, "tw"), Piece(1, "o"))],
)
def test_text_that_cannot_be_told_apart_is_uncoloured(pieces: tuple[Piece, ...]) -> None:
    text = coloured(chunk("two words", Verdict.EXACT, Verdict.RESCUED), lambda _: pieces)
    assert (text.plain, text.spans) == ("two words", [])


def test_a_chunk_without_text_asks_nothing() -> None:
    def refuse(text: str) -> tuple[Piece, ...]:
        raise AssertionError(text)

    assert coloured(chunk("", Verdict.EXACT), refuse).plain == ""


def test_the_legend_explains_every_verdict() -> None:
    assert set(STYLES) == set(Verdict)
    assert all(verdict.value in legend().plain for verdict in Verdict)
    assert "\n" not in legend().plain


def test_colours_follow_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    def printed(**options: bool) -> str:
        stream = io.StringIO()
        Console(file=stream, width=200, **options).print(legend())
        return stream.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[" in printed(force_terminal=True)
    assert "\x1b[" not in printed(force_terminal=False)


def test_the_line_of_statistics_survives_an_empty_response() -> None:
    assert statistics_line(Statistics()).startswith("0 tokens | 0.0 tokens/s")
