"""Texts of models, servers and files: exact in a pipe, and only shown on a terminal."""

import io
import json
import re
from contextlib import redirect_stdout

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from flyserve.bench.progress import progress_bar
from flyserve.cli.show import print_json, show_text
from flyserve.cli.terminal import SafeConsole, messages, print_error, visible
from flyserve.core.errors import NotReady
from flyserve.core.response import Chunk

HOSTILE = "\x1b]52;c;aGk=\x07 \x1b]0;x\x1b\\ \x1b[2J \x9b2J \x7f"
SHOWN = r"\x1b]52;c;aGk=\x07 \x1b]0;x\x1b\ \x1b[2J \x9b2J \x7f"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def written(text: str, is_terminal: bool) -> str:
    file = io.StringIO()
    SafeConsole(file, force_terminal=is_terminal).write_text(text)
    return file.getvalue()


def test_a_pipe_gets_a_text_as_it_is() -> None:
    for text in ("a\tb :100: \r\n", "x[:100:2] [bold] :key:", HOSTILE, "w" * 1000, "\a\b\v\f\r"):
        assert written(text, is_terminal=False) == text


def test_a_terminal_gets_tabs_and_newlines_and_shows_other_control_characters() -> None:
    assert written("a\tb :100: [bold]\r\n", is_terminal=True) == "a\tb :100: [bold]\\r\n"
    assert written("\x1b]0;x\x1b\\", is_terminal=True) == r"\x1b]0;x\x1b" + "\\"
    assert written(HOSTILE, is_terminal=True) == SHOWN
    assert written("w" * 1000, is_terminal=True) == "w" * 1000


@given(st.text())
def test_any_text_is_exact_in_a_pipe_and_harmless_on_a_terminal(text: str) -> None:
    assert written(text, is_terminal=False) == text
    shown = written(text, is_terminal=True)
    assert shown == visible(text) and not CONTROL.search(shown)


@given(st.lists(st.text(), min_size=1, max_size=4))
def test_a_pipe_gets_the_text_of_a_stream_and_a_newline(parts: list[str]) -> None:
    with redirect_stdout(io.StringIO()) as pipe:
        show_text([Chunk(text=part) for part in parts])
    assert pipe.getvalue() == "".join(parts) + "\n"


def test_a_pipe_that_was_closed_is_left_to_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, text: str, /) -> int:
            raise BrokenPipeError

    found: list[SafeConsole] = []
    monkeypatch.setattr(SafeConsole, "on_broken_pipe", lambda console: found.append(console))
    console = SafeConsole(Closed(), force_terminal=False)
    console.write_text("a")
    assert found == [console]


@pytest.mark.usefixtures("coloured_terminal")
def test_an_error_of_a_server_is_only_shown(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(NotReady(f"no target: {HOSTILE} [/x] :100:"))
    printed = capsys.readouterr().err
    assert printed == f"\x1b[31merror: no target: {SHOWN} [/x] :100:\x1b[0m\n"


@pytest.mark.usefixtures("coloured_terminal")
def test_tables_and_texts_are_only_shown(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table.grid()
    table.add_row(f"[bold] {HOSTILE} :100:")
    messages().print(table)
    messages().print(Text(HOSTILE.replace("\a", ""), style="red"))
    printed = COLOUR.sub("", capsys.readouterr().err)
    assert not CONTROL.search(printed)
    cell, text = (line.rstrip() for line in printed.splitlines())
    assert (cell, text) == (f"[bold] {SHOWN} :100:", SHOWN.replace(r"\x07", ""))


@pytest.mark.usefixtures("coloured_terminal")
def test_the_label_of_a_progress_bar_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(messages(), 2, "rule [/x]") as advance:
        advance()
    assert "rule [/x]" in capsys.readouterr().err


def test_json_has_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"text": f"{HOSTILE} \\\x9b é 😀"}
    print_json(value)
    printed = capsys.readouterr().out
    assert json.loads(printed) == value
    assert not CONTROL.search(printed) and "é 😀" in printed
