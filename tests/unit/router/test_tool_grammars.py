"""Grammars of required and strict tool calls, checked with the library that masks by them."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from flyserve.core.grammar import Grammar, GrammarKind
from flyserve.core.markers import THINK
from router.requests.grammars import library_form
from router.tools.channels import CHANNELS
from router.tools.families import PARSERS, ToolFamily
from router.tools.grammar import OfferedTools, after_reasoning, grammar_of, limits_reasoning
from router.tools.message import MessageFormat
from services.common.grammars.library import compile_grammar, load_tokenizer

_DS = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>"  # noqa: RUF001
_DS_END = "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"  # noqa: RUF001
CALLS = {
    ToolFamily.HERMES: '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
    ToolFamily.LLAMA3: '{"name": "f", "parameters": {"a": 1}}',
    ToolFamily.MISTRAL: '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]',
    ToolFamily.DEEPSEEK: f'{_DS}{{"a": 1}}{_DS_END}',
    ToolFamily.QWEN3_CODER: (
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
    ),
    ToolFamily.GLM: "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
}
TAGGED = (ToolFamily.QWEN3_CODER, ToolFamily.GLM)
FAMILIES = [each for each in PARSERS if each is not ToolFamily.GPT_OSS]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


def made(
    family: ToolFamily,
    special: bool | None,
    must_call: bool,
    thinks: bool,
    answer: Grammar | None = None,
    parallel: bool = False,
) -> tuple[Any, Tokenizer]:
    """Return a grammar and a tokenizer whose markers are special tokens, added ones or, with None, text."""
    markers = [*PARSERS[family].markers, *THINK, *CHANNELS]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        special_tokens=["<eos>"], initial_alphabet=alphabet, vocab_size=300, show_progress=False
    )
    tokenizer.train_from_iterator(["x"], trainer)
    if special is not None:
        tokenizer.add_tokens([AddedToken(marker, special=special, normalized=False) for marker in markers])
    known = {marker: tokenizer.token_to_id(marker) for marker in markers}
    form = MessageFormat(
        PARSERS[family],
        {"f": {}, "g": {}},
        reasoning=THINK if thinks else None,
        markers=known,
        has_channels=PARSERS[family].has_channels,
    )
    tools = OfferedTools({"f": SCHEMA, "g": {"type": "object"}}, frozenset("f"), must_call, parallel=parallel)
    grammar = grammar_of(tools, form, answer)
    return grammar and after_reasoning(grammar, form), tokenizer


def matches(grammar: Grammar, tokenizer: Tokenizer, text: str) -> bool:
    """Return True if a grammar allows a whole text."""
    matcher = compile_grammar(load_tokenizer(tokenizer.to_str(), 0), library_form(grammar))
    ids = tokenizer.encode(text).ids
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("must_call", [False, True])
@pytest.mark.parametrize("special", [True, False, None])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_grammar_allows_calls_that_fit_their_schema_alone(
    family: ToolFamily, special: bool | None, must_call: bool, thinks: bool
) -> None:
    grammar, tokenizer = made(family, special, must_call, thinks)
    if not must_call and special is None and (thinks or family is not ToolFamily.LLAMA3):
        assert grammar is None, "a grammar cannot find a marker that is no token in free text"
        return
    assert grammar.kind is GrammarKind.LARK

    def allows(text: str) -> bool:
        return matches(grammar, tokenizer, text)

    call, thought = CALLS[family], "<think>hm, {</think>\n\n" if thinks else ""
    assert allows(thought + call)
    assert not allows(thought + call.replace("1", '"one"')), "the arguments break the schema"
    other = re.sub(r"""(["=>])f(["<>\n])""", r"\1h\2", call)
    assert other != call and not allows(thought + other), "there is no such tool"
    assert allows(f"{thought}Hello.") is not must_call
    if PARSERS[family].opening():
        assert allows(f"{thought}Hi.{call}") is not must_call


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("must_call", [False, True])
@pytest.mark.parametrize("special", [True, False, None])
@pytest.mark.parametrize("family", FAMILIES)
def test_with_a_format_a_message_is_calls_or_an_answer(
    family: ToolFamily, special: bool | None, must_call: bool, thinks: bool
) -> None:
    answer = Grammar(
        GrammarKind.JSON_SCHEMA,
        '{"type": "object", "properties": {"x": {"$ref": "#/$defs/y"}}, '
        '"additionalProperties": false, "$defs": {"y": {"enum": ["a"]}}}',
    )
    grammar, tokenizer = made(family, special, must_call, thinks, answer)
    call, thought = CALLS[family], "<think>hm, {</think>\n\n" if thinks else ""

    def allows(text: str) -> bool:
        return matches(grammar, tokenizer, thought + text)

    assert allows(call)
    assert not allows(call.replace("1", '"one"')), "the arguments break the schema"
    assert allows('{"x": "a"}') is not must_call, "a required call lets the format wait"
    assert not allows('{"x": "b"}') and not allows("Hello.") and not allows(f"Hi.{call}")


@pytest.mark.parametrize(("family", "separator"), [(ToolFamily.HERMES, "\n"), (ToolFamily.LLAMA3, "; ")])
def test_a_message_has_several_calls_only_where_the_templates_of_its_family_take_them(
    family: ToolFamily, separator: str
) -> None:
    grammar, tokenizer = made(family, True, must_call=True, thinks=False, parallel=True)
    assert matches(grammar, tokenizer, CALLS[family])
    several = matches(grammar, tokenizer, separator.join([CALLS[family]] * 2))
    assert several is not PARSERS[family].has_one_call


def test_a_format_that_spells_calls_describes_them_itself() -> None:
    form = MessageFormat(PARSERS[ToolFamily.HERMES], {"f": {}}, markers={"<tool_call>": 1, "</tool_call>": 2})
    own = Grammar(GrammarKind.CHOICE, '["<tool_call>x", "y"]')
    assert grammar_of(OfferedTools({"f": SCHEMA}), form, own) is own
    assert grammar_of(OfferedTools(), None, own) is own
    described = Grammar(GrammarKind.JSON_SCHEMA, '{"description": "no <tool_call>"}')
    found = grammar_of(OfferedTools({"f": SCHEMA}), form, described)
    assert found is not None and found.calls


NODE = {
    "$defs": {
        "N": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "n": {"$ref": "#/$defs/N"}},
            "required": ["a"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/N",
}
SELF = {**SCHEMA, "properties": {"a": {"type": "integer"}, "n": {"$ref": "#"}}}


@pytest.mark.parametrize("schema", [NODE, SELF])
@pytest.mark.parametrize("family", [each for each in FAMILIES if each not in TAGGED])
def test_references_of_a_schema_refer_to_that_schema_in_every_format(
    family: ToolFamily, schema: dict[str, Any]
) -> None:
    _, tokenizer = made(family, True, must_call=True, thinks=False)
    known = {marker: tokenizer.token_to_id(marker) for marker in PARSERS[family].markers}
    form = MessageFormat(PARSERS[family], {"f": {}, "g": {}}, markers=known)
    grammar = grammar_of(OfferedTools({"g": {"$defs": {"N": {}}}, "f": schema}, must_call=True), form)
    assert grammar is not None
    deep = CALLS[family].replace('{"a": 1}', '{"a": 1, "n": {"a": 2, "n": {"a": 3}}}')
    assert matches(grammar, tokenizer, deep) and not matches(grammar, tokenizer, deep.replace("3", "[]"))


VALUES = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "maxLength": 3},
        "size": {"enum": [1, 2]},
        "node": {"$ref": "#/$defs/N"},
        "any": {},
        "unit": {"type": "string", "enum": ["C", "CF"]},
    },
    "required": ["text"],
    "$defs": {"N": {"type": "object", "properties": {"n": {"$ref": "#/$defs/N"}}}},
}


def _tagged(family: ToolFamily, **values: str) -> str:
    """Return a call of the tool `f` in a format with tags."""
    if family is ToolFamily.GLM:
        pairs = (f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in values.items())
        return f"<tool_call>f\n{''.join(pairs)}</tool_call>"
    pairs = (f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
    return f"<tool_call>\n<function=f>\n{''.join(pairs)}</function>\n</tool_call>"


@pytest.mark.parametrize("special", [True, None])
@pytest.mark.parametrize("family", TAGGED)
def test_a_value_between_tags_is_text_or_json_by_its_schema(family: ToolFamily, special: bool | None) -> None:
    _, tokenizer = made(family, special, must_call=True, thinks=False)
    known = {marker: tokenizer.token_to_id(marker) for marker in PARSERS[family].markers}
    form = MessageFormat(PARSERS[family], {"f": VALUES}, markers=known)
    grammar = grammar_of(OfferedTools({"f": VALUES}, must_call=True), form)
    free = grammar_of(OfferedTools({"f": {}}, must_call=True), form)
    assert grammar is not None and free is not None

    def allows(**values: str) -> bool:
        return matches(grammar, tokenizer, _tagged(family, **values))

    assert allows(text="") and allows(text='a "b"\n</p> <x')
    assert allows(text="a", size="2", node='{"n": {"n": {}}}', any="x") and allows(text="5", any="[1")
    assert allows(text="a", unit="C") and allows(text="a", unit="CF") and not allows(text="a", unit="F")
    assert not allows(size="1"), "a required argument is missing"
    assert (
        not allows(text="a", size="3") and not allows(text="a", node="[1]") and not allows(text="a", no="x")
    )
    closed = OfferedTools({"f": {"additionalProperties": False}}, must_call=True)
    none = grammar_of(closed, form)
    assert none is not None and matches(none, tokenizer, _tagged(family))
    assert not matches(none, tokenizer, _tagged(family, x="1"))
    assert matches(free, tokenizer, _tagged(family)) and matches(
        free, tokenizer, _tagged(family, x="1", y="z")
    )


def test_calls_and_answers_of_gpt_oss_have_channels_of_their_own() -> None:
    thought = "<|channel|>analysis<|message|>hm {<|end|><|start|>assistant"
    call = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}'
    final = "<|channel|>final<|message|>"
    answer = Grammar(GrammarKind.JSON_SCHEMA, '{"enum": ["x"]}')
    family = ToolFamily.GPT_OSS
    required, tokenizer = made(family, True, must_call=True, thinks=False)
    either, _ = made(family, True, must_call=False, thinks=False, answer=answer)
    for allowed in (call, thought + call):
        assert matches(required, tokenizer, allowed) and matches(either, tokenizer, allowed)
    for allowed in (f'{final}"x"', f'{thought}{final}"x"'):
        assert matches(either, tokenizer, allowed) and not matches(required, tokenizer, allowed)
    for refused in (call.replace("1", "[]"), call.replace(".f", ".h"), f'{final}"y"', thought):
        assert not matches(either, tokenizer, refused) and not matches(required, tokenizer, refused)
    assert made(family, True, must_call=False, thinks=False)[0] is None, "free text has no end to look for"
    spelled, tokenizer = made(family, None, must_call=True, thinks=False)
    assert matches(spelled, tokenizer, call)


def test_nothing_is_constrained_unless_a_call_is_required_or_strict() -> None:
    form = MessageFormat(PARSERS[ToolFamily.HERMES], {"f": {}}, markers={"<tool_call>": 1, "</tool_call>": 2})
    assert grammar_of(OfferedTools({"f": SCHEMA}), form) is None
    assert grammar_of(OfferedTools({"f": SCHEMA}, must_call=True), None) is None


ANSWERS = [
    (Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)), '{"a": 1}', '{"a": "one"}'),
    (Grammar(GrammarKind.JSON_OBJECT), "{}", "[]"),
    (Grammar(GrammarKind.CHOICE, '["yes", "no"]'), "no", "maybe"),
    (Grammar(GrammarKind.REGEX, "[0-9]{2}"), "12", "123"),
    (Grammar(GrammarKind.LARK, 'start: "x" other\nother: "y"'), "xy", "y"),
]


@pytest.mark.parametrize(("grammar", "good", "bad"), ANSWERS)
@pytest.mark.parametrize("special", [True, False, None])
def test_a_grammar_begins_where_reasoning_ends(
    grammar: Grammar, good: str, bad: str, special: bool | None
) -> None:
    _, tokenizer = made(ToolFamily.HERMES, special, must_call=True, thinks=True)
    known = {marker: tokenizer.token_to_id(marker) for marker in THINK}
    form = MessageFormat(None, {}, reasoning=THINK, markers=known)
    optional = after_reasoning(grammar, form)
    opened = after_reasoning(grammar, replace(form, is_thinking=True))
    thought = f"hm: {bad} or {good}?</think>\n\n"
    for whole, text in ((optional, f"<think>{thought}"), (optional, ""), (opened, thought)):
        assert matches(whole, tokenizer, text + good) and not matches(whole, tokenizer, text + bad)
    assert not matches(optional, tokenizer, f"<think>{good}") and not matches(opened, tokenizer, good)
    assert (
        after_reasoning(grammar, None) is after_reasoning(grammar, replace(form, reasoning=None)) is grammar
    )


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("budget", [0, 1, 4])
def test_reasoning_may_have_a_budget(special: bool, budget: int) -> None:
    _, tokenizer = made(ToolFamily.HERMES, special, must_call=True, thinks=True)
    known = {marker: tokenizer.token_to_id(marker) for marker in THINK}
    form = MessageFormat(None, {}, reasoning=THINK, is_thinking=True, markers=known)
    grammar = grammar_of(OfferedTools(), form, is_needed=True)
    assert grammar is not None and limits_reasoning(form)
    limited = after_reasoning(grammar, form, budget)
    within, beyond = "q" * budget, "q" * (budget + 1)
    assert len(tokenizer.encode(within).ids) == budget
    assert matches(limited, tokenizer, f"{within}</think>Any text.")
    assert not matches(limited, tokenizer, f"{beyond}</think>Any text.")
    assert not matches(limited, tokenizer, within)


def test_reasoning_whose_end_is_no_token_has_no_budget() -> None:
    form = MessageFormat(None, {}, reasoning=THINK, markers={THINK[1]: None})
    assert not limits_reasoning(form) and not limits_reasoning(None)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_budget_leaves_calls_to_the_model(family: ToolFamily) -> None:
    _, tokenizer = made(family, True, must_call=True, thinks=True)
    markers = [*PARSERS[family].markers, *THINK, *CHANNELS]
    known = {marker: tokenizer.token_to_id(marker) for marker in markers}
    form = MessageFormat(PARSERS[family], {"f": {}, "g": {}}, reasoning=THINK, markers=known)
    grammar = grammar_of(OfferedTools({"f": SCHEMA, "g": {"type": "object"}}), form, is_needed=True)
    assert grammar is not None
    limited = after_reasoning(grammar, form, 8)
    for answer in ("Hello.", CALLS[family]):
        assert matches(limited, tokenizer, f"<think>qq</think>{answer}") and matches(
            limited, tokenizer, answer
        )
