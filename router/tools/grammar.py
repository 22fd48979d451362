"""Grammars of messages: of tool calls, or calls and an answer's format, and of reasoning before either."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from flyserve.core.grammar import ArgumentsSchema, Grammar, GrammarKind
from router.tools.channels import CHANNELS
from router.tools.lark import GAP, up_to, without
from router.tools.message import MessageFormat
from router.tools.parser import ToolParser

_OBJECT = {"type": "object"}
_WHITE = r"WHITE: /[ \t\r\n]{0,8}/"
"""White space beside reasoning; without a limit a model may write it until the response is full."""


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """Tools that a message may call.

    Attributes:
        schemas: JSON Schema of the arguments, by the name of the tool.
        strict: Tools whose arguments must fit their schema, also where no call is required.
        must_call: True if the message has to call one of them.
        are_some: True if the model is shown other tools, too, which it must not call.
        parallel: True if it may have several calls.
    """

    schemas: Mapping[str, Any] = field(default_factory=dict)
    strict: frozenset[str] = frozenset()
    must_call: bool = False
    are_some: bool = False
    parallel: bool = True


def grammar_of(
    tools: OfferedTools, form: MessageFormat | None, answer: Grammar | None = None, is_needed: bool = False
) -> Grammar | None:
    """Return the grammar of a message, without its reasoning; None if any text is allowed.

    A required call has arguments that fit their schema. Where none is required, the message is calls or an
    answer, of which `answer` is the grammar; the arguments of tools that are not strict are then any object.
    A grammar of the answer that spells the marker of calls describes the calls itself.

    Without one, strict tools and a choice of some tools are not constrained if a marker that ends free text
    is no token of the vocabulary: a grammar cannot find it in the text. If a grammar `is_needed`, it is one
    of any text.
    """
    parser = None if form is None else form.parser
    if form is not None and parser is not None:
        if tools.must_call:
            return _of_message("start: calls", *_calls(tools, form, parser))
        if answer is not None and not _spells(answer, parser.opening()):
            calls, schemas = _calls(tools, form, parser)
            return replace(answer, calls=calls, schemas=schemas)
        constrains = tools.strict or tools.are_some or is_needed
        if answer is None and constrains and _ends_are_tokens(form, parser):
            return _of_message(_free_start(parser.opening()), *_calls(tools, form, parser))
    return Grammar(GrammarKind.LARK, "start: /(?s:.*)/\n") if answer is None and is_needed else answer


def _of_message(start: str, calls: str, schemas: tuple[ArgumentsSchema, ...]) -> Grammar:
    return Grammar(GrammarKind.LARK, f"{start}\n{calls}", schemas=schemas, is_of_tools=True)


def _calls(
    tools: OfferedTools, form: MessageFormat, parser: type[ToolParser]
) -> tuple[str, tuple[ArgumentsSchema, ...]]:
    """Return the rules of calls, and the schemas to which they refer."""
    write = partial(_written, form)
    rules = {
        name: parser.arguments_rule(f"args_{index}", _applied(tools, name, schema), write)
        for index, (name, schema) in enumerate(tools.schemas.items())
    }
    calls = parser.calls_rule({name: each.reference for name, each in rules.items()}, write, tools.parallel)
    schemas = tuple(
        ArgumentsSchema(rule, name, json.dumps(schema), is_hint=name not in tools.strict)
        for name, each in rules.items()
        for rule, schema in each.schemas.items()
    )
    return "\n".join((calls, GAP, *(each.lines for each in rules.values()), "")), schemas


def _applied(tools: OfferedTools, name: str, schema: Any) -> Any:
    """Return the schema that the arguments of a tool must fit: any object if it is a hint."""
    return {**schema, "type": "object"} if tools.must_call or name in tools.strict else _OBJECT


def _spells(answer: Grammar, opening: str) -> bool:
    is_json = answer.kind in (GrammarKind.JSON_SCHEMA, GrammarKind.JSON_OBJECT)
    return bool(opening) and not is_json and opening in answer.text


def _ends_are_tokens(form: MessageFormat, parser: type[ToolParser]) -> bool:
    opening = parser.opening()
    return all(_is_token(form, each) for each in (*([opening] if opening else []), *(form.reasoning or ())))


def _free_start(opening: str) -> str:
    """Return the rule of a message that may have calls."""
    if opening:
        return f"start: FREE calls?\nFREE: {without(opening)}"
    return "start: calls | OTHER\n" r"OTHER: /([^{ \t\r\n](?s:.*))?/"


def after_reasoning(grammar: Grammar, form: MessageFormat | None, budget: int | None = None) -> Grammar:
    """Return a grammar that begins where the reasoning of a message ends, within a round if need be.

    The reasoning has at most `budget` tokens between its markers; None is any number.
    """
    if form is not None and form.has_channels:
        return _in_channels(grammar, form, budget)
    if form is None or form.reasoning is None:
        return grammar
    opening, closing = form.reasoning
    thought = "thought WHITE" if form.is_thinking else f"WHITE ({_written(form, opening)} thought WHITE)?"
    return replace(grammar, before=f"before: {thought}\n{_thought(form, closing, budget)}\n{_WHITE}\n")


def _in_channels(grammar: Grammar, form: MessageFormat, budget: int | None) -> Grammar:
    """Return a grammar in the channels of GPT-OSS: reasoning may come first, an answer has one of its own."""
    if not all(_is_token(form, marker) for marker in CHANNELS):
        return grammar
    start, channel, message, _ = (_written(form, marker) for marker in CHANNELS)
    thought = f'({channel} "analysis" {message} thought {start} "assistant")?'
    before = f"before: {thought}\n{_thought(form, CHANNELS[-1], budget)}\n"
    heading = "" if grammar.is_of_tools else f'({channel} "final" {message})?'
    return replace(grammar, before=before, heading=heading)


def limits_reasoning(form: MessageFormat | None) -> bool:
    """Return True if the reasoning of a message can have a budget: its end must be a token."""
    return form is not None and form.reasoning is not None and _is_token(form, form.reasoning[1])


def _thought(form: MessageFormat, end: str, budget: int | None) -> str:
    """Return the rule of reasoning with its end."""
    if budget == 0:
        return f"thought: {_written(form, end)}"
    if _is_token(form, end):
        limit = "" if budget is None else f"[max_tokens={budget}]"
        lines = (f"thought: text {_written(form, end)}", f"text{limit}: THOUGHT")
        return "\n".join((*lines, f"THOUGHT: {without(end)}"))
    return f"thought[lazy]: {up_to(end)}"


def _is_token(form: MessageFormat, marker: str) -> bool:
    return (form.markers or {}).get(marker) is not None


def _written(form: MessageFormat, marker: str) -> str:
    """Return a marker in the notation of Lark: its token, or its text if the vocabulary has none."""
    token = (form.markers or {}).get(marker)
    return json.dumps(marker, ensure_ascii=False) if token is None else f"<[{token}]>"
