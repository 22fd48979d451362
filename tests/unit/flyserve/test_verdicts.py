import io

import pytest
from rich.console import Console
from rich.text import Text

from flyserve.cli.show import STYLES, Colouring, legend, show_text
from flyserve.core.response import Chunk
from flyserve.core.types import Token, Verdict


def chunk(text: str, *tokens: tuple[str, Verdict]) -> Chunk:
    made = tuple(Token(index, verdict, index, 0.5, part) for index, (part, verdict) in enumerate(tokens))
    return Chunk(text=text, tokens=made)


def spans(text: Text) -> list[tuple[str, str]]:
    return [(text.plain[span.start : span.end], str(span.style)) for span in text.spans]


EXACT, RESCUED = STYLES[Verdict.EXACT], STYLES[Verdict.RESCUED]


def test_each_token_has_its_verdicts_colour() -> None:
    text = Colouring().colour(chunk("two words", ("two", Verdict.EXACT), (" words", Verdict.RESCUED)))
    assert text.plain == "two words"
    assert spans(text) == [("two", EXACT), (" words", RESCUED)]


def test_text_that_was_withheld_keeps_its_tokens_colour() -> None:
    colouring = Colouring()
    first = colouring.colour(chunk("two wo", ("two", Verdict.EXACT), (" words", Verdict.RESCUED)))
    assert spans(first) == [("two", EXACT), (" wo", RESCUED)]
    assert spans(colouring.colour(chunk("rds", ("!", Verdict.EXACT)))) == [("rds", RESCUED)]
    assert spans(colouring.colour(chunk("!"))) == [("!", EXACT)]


def test_a_character_that_several_tokens_make_has_the_last_ones_colour() -> None:
    text = Colouring().colour(chunk("\U0001f600", ("", Verdict.EXACT), ("\U0001f600", Verdict.RESCUED)))
    assert spans(text) == [("\U0001f600", RESCUED)]


def test_what_belongs_to_no_token_is_uncoloured() -> None:
    text = Colouring().colour(chunk("a\ufffd", ("a", Verdict.EXACT)))
    assert (text.plain, spans(text)) == ("a\ufffd", [("a", EXACT)])


SEQUENCE = "\x1b]0;x\x1b\\\r\n"
IN_PARTS = (
    chunk("a\t\x1b]0;", ("a\t", Verdict.EXACT), (SEQUENCE, Verdict.RESCUED)),
    chunk("x\x1b\\\r\n\x9b"),
)


def test_control_characters_are_shown_in_the_colour_of_their_token() -> None:
    colouring = Colouring()
    assert spans(colouring.colour(IN_PARTS[0])) == [("a\t", EXACT), (r"\x1b]0;", RESCUED)]
    last = colouring.colour(IN_PARTS[1])
    assert spans(last) == [("x\\x1b\\\\r\n", RESCUED)] and last.plain.endswith(r"\x9b")


@pytest.mark.usefixtures("coloured_terminal")
def test_a_terminal_gets_no_sequence_but_those_of_colours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show_text(IN_PARTS)
    coloured = "\x1b[32ma\t\x1b[0m\x1b[1;33m\\x1b]0;\x1b[0m\x1b[1;33mx\\x1b\\\\r\n\x1b[0m\\x9b\n"
    assert capsys.readouterr().out == coloured
    monkeypatch.setenv("NO_COLOR", "1")
    show_text(IN_PARTS)
    assert capsys.readouterr().out == "a\t\\x1b]0;x\\x1b\\\\r\n\\x9b\n"


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
