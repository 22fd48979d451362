"""Grammars of required and strict tool calls, checked with the library that masks by them."""

from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from fly.grammar import GrammarKind
from router.tools.families import PARSERS, ToolFamily
from router.tools.grammar import OfferedTools, grammar_of
from router.tools.message import END_THINK, THINK, MessageFormat

_DS = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>"  # noqa: RUF001
_DS_END = "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"  # noqa: RUF001
CALLS = {
    ToolFamily.HERMES: '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
    ToolFamily.LLAMA3: '{"name": "f", "parameters": {"a": 1}}',
    ToolFamily.MISTRAL: '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]',
    ToolFamily.DEEPSEEK: f'{_DS}{{"a": 1}}{_DS_END}',
}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


def made(family: ToolFamily, special: bool | None, must_call: bool, thinks: bool) -> tuple[Any, Tokenizer]:
    """Return a grammar and a tokenizer whose markers are special tokens, added ones or, with None, text."""
    markers = [*PARSERS[family].markers, THINK, END_THINK]
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
    form = MessageFormat(PARSERS[family], ("f", "g"), thinks=thinks, markers=known)
    tools = OfferedTools({"f": SCHEMA, "g": {"type": "object"}}, frozenset("f"), must_call, parallel=False)
    return grammar_of(tools, form), tokenizer


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("must_call", [False, True])
@pytest.mark.parametrize("special", [True, False, None])
@pytest.mark.parametrize("family", PARSERS)
def test_a_grammar_allows_calls_that_fit_their_schema_alone(
    family: ToolFamily, special: bool | None, must_call: bool, thinks: bool
) -> None:
    grammar, tokenizer = made(family, special, must_call, thinks)
    if not must_call and special is None and (thinks or family is not ToolFamily.LLAMA3):
        assert grammar is None, "a grammar cannot find a marker that is no token in free text"
        return
    assert grammar.kind is GrammarKind.LARK
    guidance = pytest.importorskip("llguidance")
    from llguidance.hf import from_tokenizer
    from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast

    vocabulary = from_tokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>"))

    def allows(text: str) -> bool:
        matcher = guidance.LLMatcher(vocabulary, guidance.grammar_from("lark", grammar.text))
        assert not matcher.get_error()
        ids = tokenizer.encode(text).ids
        return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())

    call, thought = CALLS[family], "<think>hm, {</think>\n\n" if thinks else ""
    assert allows(thought + call)
    assert not allows(thought + call.replace("1", '"one"')), "the arguments break the schema"
    assert not allows(thought + call.replace('"f"', '"h"').replace(">f<", ">h<")), "there is no such tool"
    assert allows(f"{thought}Hello.") is not must_call
    if PARSERS[family].opening():
        assert allows(f"{thought}Hi.{call}") is not must_call


def test_nothing_is_constrained_unless_a_call_is_required_or_strict() -> None:
    form = MessageFormat(PARSERS[ToolFamily.HERMES], ("f",), markers={"<tool_call>": 1, "</tool_call>": 2})
    assert grammar_of(OfferedTools({"f": SCHEMA}), form) is None
    assert grammar_of(OfferedTools({"f": SCHEMA}, must_call=True), None) is None
