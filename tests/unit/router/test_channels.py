"""Channels of GPT-OSS and Gemma 4: reasoning, content and calls, however the text is cut into rounds."""

import re
from collections.abc import Sequence

import pytest

from router.tools.channels import CHANNELS, GEMMA_THOUGHT
from router.tools.families import PARSERS, ToolFamily
from router.tools.message import MessageFormat
from tests.support.written_messages import F, G, form_of, parsed, written

_ANALYSIS, _FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
_NEXT = "<|end|><|start|>assistant"
CHANNELED = [
    (f"{_ANALYSIS}hm <think>{_NEXT}{_FINAL}yes", "hm <think>", "yes"),
    (f"{_ANALYSIS}hm, {_NEXT}{_ANALYSIS}so{_NEXT}{_FINAL}\nyes<|end|>", "hm,so", "yes"),
    (f"{_FINAL}analysis", "", "analysis"),
    ("plain", "", "plain"),
    (f"{_ANALYSIS}hm", "hm", ""),
    (f"{_ANALYSIS}hm{_NEXT}<|channel|>fin", "hm", ""),
    (
        f"{_ANALYSIS}hm{_NEXT} to=functions.analysis<|channel|>commentary<|message|>{{}}",
        "hm",
        "assistant to=functions.analysis commentary{}",
    ),
    (f"<|channel|>{'x' * 300}", "", "x" * 300),
    ("<|channel|>final Hello there", "", "final Hello there"),
]


@pytest.mark.parametrize(("text", "reasoning", "content"), CHANNELED)
@pytest.mark.parametrize("by_id", [True, False])
@pytest.mark.parametrize("cuts", [[], range(400)])
def test_the_channels_of_gpt_oss_are_reasoning_and_content(
    text: str, reasoning: str, content: str, by_id: bool, cuts: Sequence[int]
) -> None:
    known = {marker: 100 + at for at, marker in enumerate(CHANNELS)} if by_id else {}
    pieces = re.findall("|".join((*map(re.escape, known), "(?s:.)")), text)
    form = MessageFormat(has_channels=True, markers=known, tracks_tokens=True)
    tokens = [(known.get(piece, 1), "" if piece in known else piece) for piece in pieces]
    found = parsed(form, tokens, cuts)
    assert (found.reasoning, found.content) == (reasoning, content)
    assert len(found.are_content) == len(tokens)
    assert bool(found.reasoning_tokens) == bool(reasoning)
    silent = MessageFormat(has_channels=True, markers=known, keeps_reasoning=False)
    assert (parsed(silent, tokens, cuts).reasoning, parsed(silent, tokens, cuts).content) == ("", content)


_CALL, _JSON = "<|channel|>commentary to=functions.", "<|constrain|>json<|message|>"
CHANNELED_CALLS = [
    (f"{_ANALYSIS}hm{_NEXT}{_CALL}f {_JSON}{F[1]}<|call|>", "hm", "", [F]),
    (f"{_CALL}g<|message|>{{}}", "", "", [G]),
    (
        f"{_ANALYSIS}hm{_NEXT} to=functions.g<|channel|>commentary {_JSON}{{}}",
        "hm",
        "",
        [G],
    ),
    (
        f"<|channel|>commentary<|message|>I look. {_NEXT}{_CALL}g{_JSON}{{}}",
        "",
        "I look.",
        [G],
    ),
    (f'{_CALL}f<|message|>{{"a": [', "", "", [("f", '{"a": [')]),
    (f'{_CALL}f<|message|>{{"a": 1{_NEXT}{_FINAL}yes', "", "yes", [("f", '{"a": 1')]),
    (f"{_CALL}no<|message|>{{}}", "", "commentary to=functions.no{}", []),
    (f"{_CALL}f<|message|>[1]", "", "commentary to=functions.f[1]", []),
]


@pytest.mark.parametrize(("text", "reasoning", "content", "calls"), CHANNELED_CALLS)
@pytest.mark.parametrize("by_id", [True, False])
@pytest.mark.parametrize("cuts", [[], range(400)])
def test_calls_of_gpt_oss_are_in_channels(
    text: str, reasoning: str, content: str, calls: list[tuple[str, str]], by_id: bool, cuts: Sequence[int]
) -> None:
    markers = (*CHANNELS, *PARSERS[ToolFamily.GPT_OSS].markers)
    known = {marker: 100 + at for at, marker in enumerate(markers)} if by_id else {}
    pieces = re.findall("|".join((*map(re.escape, known), "(?s:.)")), text)
    tokens = [(known.get(piece, 1), "" if piece in known else piece) for piece in pieces]
    form = form_of(ToolFamily.GPT_OSS, has_channels=True, markers=known, tracks_tokens=True)
    found = parsed(form, tokens, cuts)
    assert (found.reasoning, found.content) == (reasoning, content)
    assert [(call.name, call.arguments) for call in found.calls] == calls
    assert found.has_whole_calls == bool(calls and calls[-1][1].endswith("}"))
    assert len(found.are_content) == len(tokens)


def test_no_stop_string_reaches_over_two_channels() -> None:
    known = {marker: 100 + at for at, marker in enumerate(CHANNELS)}
    text = f"<|channel|>commentary<|message|>Checking.{_NEXT}{_FINAL}Stop here."
    pieces = re.findall("|".join((*map(re.escape, known), "(?s:.)")), text)
    tokens = [(known.get(piece, 1), "" if piece in known else piece) for piece in pieces]
    found, length = written(MessageFormat(has_channels=True, markers=known), tokens, [], ["g.S"])
    assert (found.content, length) == ("Checking.Stop here.", len(tokens))


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<|channel>thought\nhm<channel|>yes", "hm", "yes"),
        ("<|channel>thought\n<channel|>yes", "", "yes"),
        ("<|channel>thought\nhm, <channel|><|channel>thought\nso<channel|>yes", "hm,so", "yes"),
        ("yes<|channel>thought\nhm<channel|>, sir", "hm", "yes, sir"),
        ("<|channel>thoughtful<channel|>yes", "thoughtful", "yes"),
        ("<|channel>thou", "", ""),
        ("thought\nyes", "", "thought\nyes"),
    ],
)
@pytest.mark.parametrize("cuts", [[], range(100)])
def test_the_label_of_gemmas_reasoning_is_no_part_of_it(
    text: str, reasoning: str, content: str, cuts: Sequence[int]
) -> None:
    found = parsed(MessageFormat(reasoning=GEMMA_THOUGHT), [(1, char) for char in text], cuts)
    assert (found.reasoning, found.content) == (reasoning, content)
