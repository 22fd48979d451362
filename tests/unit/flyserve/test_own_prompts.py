"""`flyserve bench --prompts`: the files that it reads, and when a response counts as right."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyserve.bench.comparison import sent_prompt
from flyserve.bench.tasks import Task, own_tasks
from flyserve.client import Client
from flyserve.core.errors import NO_CHAT_TEMPLATE, ConfigError, FieldViolation, InvalidRequest
from flyserve.core.request import ChatMessage
from flyserve.core.response import TextToken


class Templated(Client):
    """A client of a server whose model has a chat template, or none, for this reason."""

    def __init__(self, reason: str = "") -> None:
        self._reason = reason

    def tokenize(
        self, text: str | Sequence[ChatMessage], timeout_s: float | None = None
    ) -> tuple[TextToken, ...]:
        if self._reason:
            raise InvalidRequest(FieldViolation("messages", "are rejected", self._reason))
        assert text == [ChatMessage("user", "own")]
        return tuple(TextToken(id, "t") for id in (3, 5))


def written(folder: Path, text: str) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text(text, encoding="utf-8")
    return path


def test_prompts_are_read_in_their_order_up_to_the_limit(tmp_path: Path) -> None:
    path = written(tmp_path, '{"prompt": "a", "answer": "x"}\n\n{"prompt": "b"}\n{"prompt": "c"}\n')
    assert len(own_tasks(path)) == 3
    first, second = own_tasks(path, 2)
    assert (first.prompt, second.prompt) == ("a", "b")
    assert first.id.endswith(":1") and second.id.endswith(":3")
    assert first.is_solved_by("so x it is") and not first.is_solved_by("y")
    assert second.is_solved_by("anything") is None, "nothing judges a response without an answer"


@pytest.mark.parametrize(
    "line",
    [
        "no JSON",
        "[]",
        "{}",
        '{"prompt": 1}',
        '{"prompt": "a", "anwser": "b"}',
        '{"prompt": ""}',
        r'{"prompt": "\ud800"}',
    ],
)
def test_an_odd_line_is_rejected_by_its_number(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match=r'prompts\.jsonl:2: must be a JSON object such as \{"prompt"'):
        own_tasks(written(tmp_path, f'{{"prompt": "a"}}\n{line}\n'))


@given(st.text(max_size=200))
def test_any_text_is_read_or_rejected_by_name(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_bytes(text.encode("utf-8", errors="surrogatepass"))
    try:
        assert all(task.prompt for task in own_tasks(path, 5))
    except ConfigError as error:
        assert str(path) in str(error)


def test_only_a_line_feed_ends_a_prompt(tmp_path: Path) -> None:
    (path := tmp_path / "prompts.jsonl").write_bytes(
        '{"prompt": "a\u2028b\x85c"}\r\n{"prompt": "d"}'.encode()
    )
    assert [own.prompt for own in own_tasks(path)] == ["a\u2028b\x85c", "d"]


def test_the_file_of_a_calibration_is_read(tmp_path: Path) -> None:
    line = '{"prompt": "a", "answer": "x", "family": "sums"}'
    own, again = own_tasks(written(tmp_path, f"{line}\n{line}\n"))
    assert own.is_solved_by("so x it is"), "its family asks for no other form of the answer"
    assert own.prompt == again.prompt, "traffic may repeat itself"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.jsonl cannot be read"):
        own_tasks(tmp_path / "absent.jsonl")


def test_an_own_prompt_is_sent_as_a_chat_where_the_model_has_a_template() -> None:
    own, shipped = Task("1", "", "own", ""), Task("2", "trace", "shipped", "4")
    assert sent_prompt(Templated(), own) == (3, 5)
    assert sent_prompt(Templated(NO_CHAT_TEMPLATE), own) == "own"
    assert sent_prompt(Templated(), shipped) == "shipped\n"


def test_a_prompt_that_the_template_rejects_is_named_and_not_sent_as_a_text() -> None:
    with pytest.raises(ConfigError, match=r"p\.jsonl:3: messages are rejected"):
        sent_prompt(Templated("invalid_value"), Task("p.jsonl:3", "", "own", ""))
