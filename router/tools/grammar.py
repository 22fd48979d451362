"""Grammars of messages: of required or strict tool calls, and of reasoning before what is constrained."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from fly.grammar import Grammar, GrammarKind
from router.tools.message import MessageFormat
from router.tools.parser import ToolParser

_OBJECT = {"type": "object"}
_WHITE = r"WHITE: /[ \t\r\n]*/"


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """Tools that a message may call.

    Attributes:
        schemas: JSON Schema of the arguments, by the name of the tool.
        strict: Tools whose arguments must fit their schema, also where no call is required.
        must_call: True if the message has to call one of them.
        parallel: True if it may have several calls.
    """

    schemas: Mapping[str, Any] = field(default_factory=dict)
    strict: frozenset[str] = frozenset()
    must_call: bool = False
    parallel: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.schemas)


def grammar_of(tools: OfferedTools, form: MessageFormat | None, is_needed: bool = False) -> Grammar | None:
    """Return the grammar of a message with tools, without its reasoning; None if any text is allowed.

    A required call has arguments that fit their schema, strict or not. Where no call is required, those of
    other tools are any object. Then nothing is constrained if a marker that ends free text is no token of the
    vocabulary: a grammar cannot find it in the text. If a grammar `is_needed`, it is one of any text.
    """
    if form is not None and form.parser is not None and (tools.must_call or tools.strict or is_needed):
        opening = form.parser.opening()
        ends = (*([opening] if opening else []), *(form.reasoning or ()))
        if tools.must_call or all(_is_token(form, marker) for marker in ends):
            return _of_calls(tools, form, form.parser)
    return Grammar(GrammarKind.LARK, "start: /(?s:.*)/\n") if is_needed else None


def _of_calls(tools: OfferedTools, form: MessageFormat, parser: type[ToolParser]) -> Grammar:
    schemas = {
        name: schema if tools.must_call or name in tools.strict else _OBJECT
        for name, schema in tools.schemas.items()
    }
    calls = parser.calls_rule(schemas, partial(_written, form), tools.parallel)
    texts = tuple(json.dumps(schema) for schema in schemas.values())
    start = "start: calls" if tools.must_call else _free_start(parser.opening())
    return Grammar(GrammarKind.LARK, f"{calls}\n{start}\n", schemas=texts)


def _free_start(opening: str) -> str:
    """Return the rule of a message that may have calls."""
    if opening:
        return f"start: FREE calls?\nFREE: {_without(opening)}"
    return "start: calls | OTHER\n" r"OTHER: /([^{ \t\r\n](?s:.*))?/"


def after_reasoning(grammar: Grammar, form: MessageFormat | None, budget: int | None = None) -> Grammar:
    """Return a grammar that begins where the reasoning of a message ends, within a round if need be.

    The reasoning has at most `budget` tokens between its markers; None is any number.
    """
    if form is None or form.reasoning is None:
        return grammar
    opening, closing = form.reasoning
    thought = "thought WHITE" if form.is_thinking else f"WHITE ({_written(form, opening)} thought WHITE)?"
    return replace(grammar, before=f"before: {thought}\n{_thought(form, closing, budget)}\n{_WHITE}\n")


def limits_reasoning(form: MessageFormat | None) -> bool:
    """Return True if the reasoning of a message can have a budget: its end must be a token."""
    return form is not None and form.reasoning is not None and _is_token(form, form.reasoning[1])


def _thought(form: MessageFormat, end: str, budget: int | None) -> str:
    """Return the rule of reasoning with its end.

    NOTE: the lexer is greedy, so an end that is no token must be part of a lazy rule.
    """
    if budget == 0:
        return f"thought: {_written(form, end)}"
    if _is_token(form, end):
        limit = "" if budget is None else f"[max_tokens={budget}]"
        lines = (f"thought: text {_written(form, end)}", f"text{limit}: THOUGHT")
        return "\n".join((*lines, f"THOUGHT: {_without(end)}"))
    return f"thought[lazy]: /(?s:.*){_escaped(end)}/"


def _is_token(form: MessageFormat, marker: str) -> bool:
    return (form.markers or {}).get(marker) is not None


def _written(form: MessageFormat, marker: str) -> str:
    """Return a marker in the notation of Lark: its token, or its text if the vocabulary has none."""
    token = (form.markers or {}).get(marker)
    return json.dumps(marker, ensure_ascii=False) if token is None else f"<[{token}]>"


def _without(marker: str) -> str:
    """Return the terminal of any text that does not have a marker in it."""
    return f"/(?s:.*)/ & ~/(?s:.*){_escaped(marker)}(?s:.*)/"


def _escaped(marker: str) -> str:
    return re.escape(marker).replace("/", "\\/")
