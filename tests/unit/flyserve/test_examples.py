import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize(
    "name", ["grpc_stream", "verdicts", "structured_answer", "openai_chat", "prediction"]
)
def test_the_help_of_an_example_names_its_arguments(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert ended.value.code == 0
    assert f"usage: {name}.py" in capsys.readouterr().out


def answer(stream: bool = False, **_: Any) -> Any:
    """Answer as OpenAI's package does; the last chunk has no choice, as that with the usage."""
    part = SimpleNamespace(content="the fox")
    choices = [SimpleNamespace(delta=part, message=part)]
    whole = SimpleNamespace(choices=choices, usage=None)
    return iter((whole, SimpleNamespace(choices=[]))) if stream else whole


def typed() -> Iterator[str]:
    yield "hello"
    raise EOFError


@pytest.mark.parametrize("name", ["chat_loop", "openai_chat"])
def test_an_example_takes_a_chunk_without_choices_and_the_end_of_what_is_typed(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = typed()
    models = SimpleNamespace(list=lambda: SimpleNamespace(data=[SimpleNamespace(id="m")]))
    chat = SimpleNamespace(completions=SimpleNamespace(create=answer))
    monkeypatch.setattr("openai.OpenAI", lambda **_: SimpleNamespace(models=models, chat=chat))
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    monkeypatch.setattr(sys, "argv", [f"{name}.py"])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out.endswith("the fox\n")
