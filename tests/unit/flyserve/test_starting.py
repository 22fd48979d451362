"""The bar that a person sees while a deployment starts."""

import io
import re
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from flyserve.cli.up import serve_until_interrupted, start_progress


def replica(role: str, state: str) -> Any:
    return SimpleNamespace(role=SimpleNamespace(value=role), state=SimpleNamespace(value=state))


def shown(is_terminal: bool) -> str:
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=100, no_color=True)
    with start_progress(console, 120.0) as (show, end):
        show([])
        show([replica("target", "ready"), replica("target", "starting"), replica("drafter", "starting")])
        end()
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_terminal_shows_how_many_are_ready_and_how_long_it_may_take() -> None:
    seen = shown(is_terminal=True)
    assert "starting drafter 0/1, target 1/2" in seen and "1/3" in seen
    assert re.search(r"at most \d+ s left", seen)
    assert shown(is_terminal=False) == ""


def test_flyserve_down_ends_up_with_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    status = SimpleNamespace(replicas=[], speculation="")
    deployed: Any = SimpleNamespace(
        name="main",
        registry="127.0.0.1:2",
        address="127.0.0.1:1",
        http_url=None,
        status=lambda: status,
        wait=lambda report: None,
    )
    serve_until_interrupted(nullcontext(deployed), lambda: None)
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1] == "ready 127.0.0.1:1"
    assert printed.err.splitlines()[-1] == "main was ended by flyserve down: stopped"
