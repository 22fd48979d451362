"""Tool calls and reasoning: every format, however the text is cut into rounds."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flyserve.core.markers import MISTRAL_THINK, THINK
from router.tools.channels import CHANNELS, GEMMA_THOUGHT
from router.tools.families import (
    PARSERS,
    ReasoningFamily,
    ToolFamily,
    has_channels,
    reasoning_markers,
    tool_parser,
)
from router.tools.message import MessageFormat
from router.tools.parts import Parts
from tests.support.written_messages import F, G, form_of, parsed, written

HERMES, LLAMA3, MISTRAL, DEEPSEEK, QWEN, GLM = (
    ToolFamily.HERMES,
    ToolFamily.LLAMA3,
    ToolFamily.MISTRAL,
    ToolFamily.DEEPSEEK,
    ToolFamily.QWEN3_CODER,
    ToolFamily.GLM,
)
_DS = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"  # noqa: RUF001
_DS_NEXT = "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>"  # noqa: RUF001
_DS_END = "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"  # noqa: RUF001
_SEP = "<｜tool▁sep｜>"  # noqa: RUF001
_LINES = 'print("é")\n\n</function> <tool_call>\n'
"""Value of several lines, with a quote and with tags that do not end it."""

CALLS: list[tuple[ToolFamily, str, str, list[tuple[str, str]]]] = [
    (HERMES, f'Hi.\n<tool_call>\n{{"name": "f", "arguments": {F[1]}}}\n</tool_call>\n', "Hi.", [F]),
    (HERMES, '<tool_call>{"arguments": {}, "name": "g"}</tool_call>', "", [G]),
    (HERMES, '<tool_call>{"name": "g"}</tool_call>\n<tool_call>{"name": "g"}</tool_call>', "", [G, G]),
    (HERMES, 'a <tool_call>{"name": "g"}</tool_call>\nb', "a\nb", [G]),
    (HERMES, '<tool_call>{"name": "no", "arguments": {}}</tool_call> x', "=", []),
    (HERMES, '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "=", []),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": [', "", [("f", '{"a": [')]),
    (HERMES, '<tool_call>{"na', "=", []),
    (HERMES, '<tool_call>{"name": "g", "arguments": {}</tool_call>\nb', "b", [G]),
    (HERMES, f'<tool_call>{{"name": "f", "arguments": {F[1]}', "", [F]),
    (HERMES, "no <tool_cal and </tool_call> call \n", "=", []),
    (LLAMA3, f'{{"name": "f", "parameters": {F[1]}}}; {{"name": "g", "parameters": {{}}}}', "", [F, G]),
    (LLAMA3, '<|python_tag|>{"type": "function", "name": "g", "parameters": {}}', "", [G]),
    (LLAMA3, '\n{"name": "g", "parameters": {}}\n{"name": "g", "parameters": {}}', "", [G, G]),
    (LLAMA3, '{"name": "g", "parameters": {}}\n{"name": "no"}', '{"name": "no"}', [G]),
    (LLAMA3, '{"name": "g", "parameters": {}', "", [G]),
    (LLAMA3, '{"name": "Bob", "age": 3}', "=", []),
    (LLAMA3, "<|python_tag|>print(1)", "=", []),
    (LLAMA3, ' hi {"name": "g", "parameters": {}}', "=", []),
    (
        MISTRAL,
        f'[TOOL_CALLS][{{"name": "f", "arguments": {F[1]}}}, {{"name": "g", "arguments": {{}}}}]',
        "",
        [F, G],
    ),
    (MISTRAL, f"ok[TOOL_CALLS]f{F[1]}[TOOL_CALLS]g[CALL_ID]123[ARGS]{{}}", "ok", [F, G]),
    (MISTRAL, '[TOOL_CALLS][{"name": "g", "arguments": {}]', "", [G]),
    (MISTRAL, '[TOOL_CALLS]no{"a": 1}', "=", []),
    (MISTRAL, "[TOOL_CALLS] [x", "=", []),
    (MISTRAL, "[TOOL_CALLS]" + "f" * 300, "=", []),
    (DEEPSEEK, f"{_DS}function{_SEP}f\n```json\n{F[1]}\n```{_DS_NEXT}g{_SEP}{{}}{_DS_END}", "", [F, G]),
    (DEEPSEEK, f"ok{_DS}no{_SEP}{{}}{_DS_END}", "=", []),
    (DEEPSEEK, f"{_DS}f" + "x" * 600, "=", []),
    (
        QWEN,
        f"Hi.\n<tool_call>\n<function=f>\n<parameter=a>\n{_LINES}\n</parameter>\n"
        "<parameter=n>\n-3\n</parameter>\n<parameter=b>\nTrue\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=g>\n</function>\n</tool_call>",
        "Hi.",
        [("f", json.dumps({"a": _LINES, "n": -3, "b": True}, ensure_ascii=False)), G],
    ),
    (QWEN, "<tool_call><function=f><parameter=a>5</parameter></tool_call>\nb", "b", [("f", '{"a": "5"}')]),
    (QWEN, "<tool_call><function=f><parameter=a>\n</parameter></function>", "", [("f", '{"a": ""}')]),
    (QWEN, "<tool_call><function=f><parameter=n>\nx\n</parameter></function>", "", [("f", '{"n": "x"}')]),
    (
        QWEN,
        "<tool_call><function=g><parameter=x>[1, 2.50]</parameter><parameter=y>None</parameter></function>",
        "",
        [("g", '{"x": [1, 2.50], "y": "None"}')],
    ),
    (QWEN, "<tool_call>\n<function=f>\n<parameter=a>\nso </param", "", [("f", '{"a": "so ')]),
    (QWEN, "<tool_call>\n<function=f>\n<parameter=a>\nso\n</parameter>\n", "", [("f", '{"a": "so"')]),
    (QWEN, "<tool_call>\n<function=no>\n</function>\n</tool_call> x", "=", []),
    (QWEN, "<tool_call>\n<func", "=", []),
    (
        QWEN,
        "I look.\n\n<function=f>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>\n",
        "I look.",
        [("f", '{"n": 1}')],
    ),
    (QWEN, "a <function=no>\n</function> b <function", "=", []),
    (QWEN, '<tool_call>{"name": "g", "arguments": {}}</tool_call>', "=", []),
    (QWEN, "<tool_call>\n<tool_call>\n<function=g></function>", "<tool_call>", [G]),
    (QWEN, "<tool_call><function=" + "f" * 1100, "=", []),
    (
        GLM,
        f"Hi.\n<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{_LINES}</arg_value>\n<arg_key>n</arg_key>\n"
        "<arg_value>7</arg_value>\n</tool_call>\n<tool_call>g\n</tool_call>",
        "Hi.",
        [("f", json.dumps({"a": _LINES, "n": 7}, ensure_ascii=False)), G],
    ),
    (
        GLM,
        "<tool_call>f<arg_key>b</arg_key><arg_value>false</arg_value></tool_call><tool_call>g</tool_call>",
        "",
        [("f", '{"b": false}'), G],
    ),
    (GLM, "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>so </arg", "", [("f", '{"a": "so ')]),
    (GLM, "<tool_call>no\n</tool_call> x", "=", []),
    (GLM, "<tool_call>\ng\n</tool_call>", "", [G]),
    (GLM, "<tool_call></tool_call><tool_call>no<arg_key>x", "=", []),
    (GLM, "no <arg_key> call", "=", []),
]
THOUGHT = "<think>\nhm <tool_call> [TOOL_CALLS]{\n</think>\n\n"


@pytest.mark.parametrize(("family", "text", "content", "calls"), CALLS)
@pytest.mark.parametrize("thought", ["", THOUGHT])
def test_a_message_has_its_content_and_its_calls(
    family: ToolFamily, text: str, content: str, calls: list[tuple[str, str]], thought: str
) -> None:
    whole = thought + text
    found = parsed(form_of(family, reasoning=THINK), [(1, char) for char in whole], [])
    expected = content if content != "=" else text.lstrip() if thought else text
    assert (found.content, [(call.name, call.arguments) for call in found.calls]) == (expected, calls)
    assert [call.id for call in found.calls] == [f"c{index}" for index in range(len(calls))]
    assert found.reasoning == (thought and "hm <tool_call> [TOOL_CALLS]{")
    assert found.has_whole_calls == bool(calls and calls[-1][1].endswith("}"))


@given(st.sampled_from(CALLS), st.booleans(), st.lists(st.integers(1, 120)))
def test_cuts_into_rounds_change_nothing(
    case: tuple[ToolFamily, str, str, object], thinks: bool, cuts: list[int]
) -> None:
    family, text, *_ = case
    tokens = [(1, char) for char in (THOUGHT if thinks else "") + text]
    whole, cut = (parsed(form_of(family, reasoning=THINK), tokens, edges) for edges in ([], cuts))
    assert cut == whole


@given(
    st.sampled_from(list(PARSERS)),
    st.lists(st.sampled_from([*'{}[]",:; \n`fgx', '{"name": "f", "arguments": {', '"parameters":{}}', "<", *(
        marker for parser in PARSERS.values() for marker in parser.markers), "<think>", "</think>"])),
    st.lists(st.integers(1, 40)),
    st.booleans(),
)  # fmt: skip
@example(ToolFamily.MISTRAL, ["[TOOL_CALLS]", "[", "]"], [], False)
def test_whatever_a_model_writes_is_the_same_in_any_cut(
    family: ToolFamily, pieces: list[str], cuts: list[int], by_id: bool
) -> None:
    markers = {*PARSERS[family].markers, "<think>", "</think>"}
    known = {marker: 100 + index for index, marker in enumerate(sorted(markers))} if by_id else {}
    tokens = [(known.get(piece, 1), "" if piece in known else piece) for piece in pieces]
    whole, cut = (
        parsed(form_of(family, reasoning=THINK, markers=known), tokens, edges) for edges in ([], cuts)
    )
    assert cut == whole
    own = {"<think>", "</think>", *PARSERS[ToolFamily.GPT_OSS].markers}
    if not whole.calls and own.isdisjoint(pieces):
        assert whole.content == "".join(pieces), "what is no call is content, nothing is lost"


def test_a_marker_that_is_a_token_counts_by_its_id_alone() -> None:
    form = form_of(HERMES, markers={"<tool_call>": 7, "</tool_call>": 8})
    spelled = [(1, char) for char in '<tool_call>{"name": "g"}</tool_call>']
    assert parsed(form, spelled, []).content == '<tool_call>{"name": "g"}</tool_call>'
    special = [(7, ""), (1, '{"name": "g"}'), (8, "")]
    assert [call.name for call in parsed(form, special, [1]).calls] == ["g"]
    added = [(7, "<tool_call>"), (1, '{"name": "g"}'), (8, "</tool_call>")]
    assert [call.name for call in parsed(form, added, [1]).calls] == ["g"]


THOUGHT_STOP = "hm <tool_call> [TOOL_CALLS]{"
STOPPED: list[tuple[str, list[str], str, int, bool]] = [
    ("Hi. Observation: x", ["Observation:"], "Hi. ", 0, False),
    ("a\n\nb", ["\n\n"], "a", 0, False),
    (f'Hi.\n<tool_call>\n{{"name": "f", "arguments": {F[1]}}}\n</tool_call>', ["\n"], "Hi.", 0, False),
    (f'<tool_call>\n{{"name": "f", "arguments": {F[1]}}}\n</tool_call>', ["\n", "}", "f", "<"], "", 1, True),
    (f"{CALLS[1][1]}\n{CALLS[1][1]}\nb", ["\n", "b"], "", 2, True),
    (f"{CALLS[1][1]}a b", [" "], "a", 1, True),
    (
        '<tool_call>{"name": "no", "x": "stop"}</tool_call>',
        ["stop"],
        '<tool_call>{"name": "no", "x": "',
        0,
        False,
    ),
    (f"a {CALLS[1][1]}", ["a <"], "a", 1, True),
]
"""Text after a thought, stop strings, content, calls, and whether the calls are whole."""


@pytest.mark.parametrize(("text", "stops", "content", "num_calls", "is_whole"), STOPPED)
@pytest.mark.parametrize("cuts", [[], range(200)])
def test_stop_strings_are_searched_in_the_answer_alone(
    text: str, stops: list[str], content: str, num_calls: int, is_whole: bool, cuts: Sequence[int]
) -> None:
    form = form_of(HERMES, reasoning=THINK)
    tokens = [(1, char) for char in THOUGHT + text]
    found, length = written(form, tokens, cuts, [*stops, "hm", "\n\n"])
    assert (found.content, len(found.calls), found.has_whole_calls) == (content, num_calls, is_whole)
    assert found.reasoning == THOUGHT_STOP
    assert length == len(tokens) or any(text[: length - len(THOUGHT)].endswith(stop) for stop in stops)


@pytest.mark.parametrize("text", ['{"a": "', '{"a": b}', "{'a': 1}", '{"a": 1', '{"a": NaN,}'])
@pytest.mark.parametrize("first", ["", CALLS[1][1]])
def test_a_message_has_whole_calls_only_if_all_their_arguments_are_objects(text: str, first: str) -> None:
    cut = f'{first}<tool_call>{{"name": "f", "arguments": {text}'
    found = parsed(form_of(HERMES), [(1, char) for char in cut], [])
    assert not found.has_whole_calls and len(found.calls) == 1 + bool(first)
    assert parsed(form_of(HERMES, parallel=False), [(1, char) for char in cut], []).has_whole_calls is bool(
        first
    )


def test_reasoning_is_counted_in_tokens_with_its_end() -> None:
    tokens = [(1, "<think>"), (1, "a"), (1, "b"), (1, "</think>"), (1, "c")]
    assert parsed(MessageFormat(reasoning=THINK), tokens, [2, 4]).reasoning_tokens == 3


def test_the_reasoning_of_mistrals_models_has_markers_of_its_own() -> None:
    form = MessageFormat(PARSERS[ToolFamily.MISTRAL], {"f": {}}, reasoning=MISTRAL_THINK, new_id=lambda: "c0")
    found = parsed(form, [(1, char) for char in '[THINK]hm <think>[/THINK]yes[TOOL_CALLS]f{"x": 1}'], [9, 30])
    assert (found.reasoning, found.content) == ("hm <think>", "yes")
    assert [(call.name, call.arguments) for call in found.calls] == [("f", '{"x": 1}')]


def test_a_prompt_that_opens_the_reasoning_leaves_it_open() -> None:
    tokens = [(1, char) for char in "hm</think>yes"]
    found = parsed(MessageFormat(reasoning=THINK, is_thinking=True), tokens, [3])
    assert (found.reasoning, found.content) == ("hm", "yes")
    silent = MessageFormat(reasoning=THINK, is_thinking=True, keeps_reasoning=False)
    assert parsed(silent, tokens, [5]) == Parts(content="yes", reasoning_tokens=10)


def test_without_parallel_calls_only_the_first_one_counts() -> None:
    text = '<tool_call>{"name": "g"}</tool_call><tool_call>{"name": "f", "arguments": {}}</tool_call>'
    found = parsed(form_of(HERMES, parallel=False), [(1, text)], [])
    assert [(call.index, call.name) for call in found.calls] == [(0, "g")]


@pytest.mark.parametrize(
    ("template", "family"),
    [
        ("{{ tools }}<tool_call>{{ x }}</tool_call>", HERMES),
        ("[TOOL_CALLS]", MISTRAL),
        ("<｜tool▁calls▁begin｜>", DEEPSEEK),  # noqa: RUF001
        ("{{ '<|python_tag|>' }}", LLAMA3),
        ("<tool_call>\n<function=f>\n<parameter=a>", QWEN),
        ("<tool_call>f\n<arg_key>a</arg_key>", GLM),
        ("<tool_call><function=f>", None),
        ("<other:tool_call><function=f><parameter=a>", None),
        ("plain", None),
    ],
)
def test_a_template_shows_its_format(template: str, family: ToolFamily | None) -> None:
    expected = None if family is None else PARSERS[family]
    assert tool_parser(ToolFamily.AUTO, template) is expected
    assert tool_parser(ToolFamily.NONE, template) is None
    channels = "".join(CHANNELS)
    assert tool_parser(ToolFamily.AUTO, f"{channels}functions.") is PARSERS[ToolFamily.GPT_OSS]
    assert tool_parser(ToolFamily.AUTO, channels) is None
    assert tool_parser(MISTRAL, template) is PARSERS[MISTRAL]
    assert reasoning_markers(ReasoningFamily.AUTO, template) is None
    assert reasoning_markers(ReasoningFamily.AUTO, template + "</think>") == THINK
    assert reasoning_markers(ReasoningFamily.AUTO, template + "[/THINK]") == MISTRAL_THINK
    assert reasoning_markers(ReasoningFamily.AUTO, template + "<channel|>") == GEMMA_THOUGHT
    assert has_channels(ReasoningFamily.AUTO, template + "".join(CHANNELS))
    assert not has_channels(ReasoningFamily.NONE, template + "".join(CHANNELS))
    assert not has_channels(ReasoningFamily.AUTO, template + "<|start|><|end|>")
    assert reasoning_markers(ReasoningFamily.THINK, template) == THINK
    assert reasoning_markers(ReasoningFamily.NONE, template + "</think>") is None
