"""`flyserve bench --prompts`: the files that it reads, and when a response counts as right."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyserve.bench.comparison import sent_prompts
from flyserve.bench.tasks import Task, own_tasks
from flyserve.client import Client
from flyserve.core.errors import NO_CHAT_TEMPLATE, ConfigError, FieldViolation, InvalidRequest
from flyserve.core.messages import ModelInfo, Role
from flyserve.core.request import ChatMessage
from flyserve.core.response import DeploymentInfo, TextToken


class Templated(Client):
    """A client of a server whose model has a chat template, or none, for this reason."""

    def __init__(self, reason: str = "") -> None:
        self._reason = reason
        self.context_length = 0

    def info(self, timeout_s: float | None = None) -> DeploymentInfo:
        target = ModelInfo(Role.TARGET, "m", "w", "a", "t", 10, self.context_length, "float32", 1, 1, "1")
        return DeploymentInfo(target=target)

    def tokenize(
        self, text: str | Sequence[ChatMessage], timeout_s: float | None = None
    ) -> tuple[TextToken, ...]:
        if isinstance(text, str):
            return (TextToken(7, "t"),)
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
    ("line", "fault"),
    [
        ("no JSON", "is no JSON: Expecting value at character 1"),
        ("[]", "is no JSON object"),
        ("{}", "has no prompt"),
        ('{"prompt": 1}', "prompt is 1, must be a string"),
        ('{"prompt": "a", "anwser": "b"}', "has the key 'anwser', must be prompt, answer or family"),
        ('{"prompt": ""}', "has no prompt"),
        (r'{"prompt": "\ud800"}', "has half of a surrogate pair"),
        ('{"prompt": ' + "9" * 5000 + "}", "is no JSON that can be read"),
    ],
)
def test_an_odd_line_is_rejected_by_its_number_and_its_fault(tmp_path: Path, line: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=rf'prompts\.jsonl:2: {fault}: it must be such as \{{"prompt"'):
        own_tasks(written(tmp_path, f'{{"prompt": "a"}}\n{line}\n'))


def test_a_byte_order_mark_is_no_part_of_a_prompt_and_other_bytes_are_named_by_their_line(
    tmp_path: Path,
) -> None:
    (path := tmp_path / "prompts.jsonl").write_bytes('\ufeff{"prompt": "a"}'.encode())
    assert [own.prompt for own in own_tasks(path)] == ["a"]
    path.write_bytes(b'{"prompt": "a"}\n{"prompt": "\xff"}')
    with pytest.raises(ConfigError, match=r"prompts\.jsonl:2: is not UTF-8: invalid start byte"):
        own_tasks(path)


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
    assert sent_prompts(Templated(), [own]) == [(3, 5)]
    assert sent_prompts(Templated(NO_CHAT_TEMPLATE), [own]) == [(7,)]
    assert sent_prompts(Templated(), [shipped]) == ["shipped\n"]


def test_a_prompt_that_the_template_rejects_is_named_and_not_sent_as_a_text() -> None:
    with pytest.raises(ConfigError, match=r"p\.jsonl:3: messages are rejected"):
        sent_prompts(Templated("invalid_value"), [Task("p.jsonl:3", "", "own", "")])


def test_a_prompt_without_room_for_an_answer_is_named() -> None:
    client = Templated()
    client.context_length = 2
    with pytest.raises(ConfigError, match=r"p\.jsonl:3: has 2 tokens, at most 1 leave room for an answer"):
        sent_prompts(client, [Task("p.jsonl:3", "", "own", "")])
