"""The length of the text that a grammar can force: a bound, found without spelling the text."""

import json
from collections.abc import Iterator
from math import inf
from typing import Any

from flyserve.core.grammar import Grammar, GrammarKind
from services.common.grammars.schemas import resolved

_MOST_DEPTH = 100
"""Levels and references within each other, beyond which no bound is looked for."""
_REPETITIONS = ("minItems", "minContains")
_UNBOUNDED = ("pattern", "$dynamicRef", "x-guidance")
"""Keywords, or properties of the same name, after which no bound is looked for."""


def forced_length(grammar: Grammar) -> float:
    """Return a number of characters that no text exceeds which the grammar forces; infinite if unknown.

    A short grammar can force a text without end: `a{9}` nested ten times, or rules that use others
    twice. So only JSON Schemas, lists of texts, and grammars of tools, which the router makes, have a bound.
    """
    match grammar.kind:
        case GrammarKind.JSON_OBJECT:
            own = 0.0
        case GrammarKind.JSON_SCHEMA:
            own = _schema_length(json.loads(grammar.text))
        case GrammarKind.CHOICE:
            own = len(grammar.text)
        case GrammarKind.LARK if grammar.schemas and not grammar.calls:  # the router made it
            own = len(grammar.text)
        case _:
            return inf
    return own + len(grammar.calls) + sum(_schema_length(json.loads(each.text)) for each in grammar.schemas)


def _schema_length(schema: Any) -> float:
    """Return the bound of a JSON Schema whose texts may be forced: all of them, each as often as required.

    The target of each reference is visited once.
    """
    found: dict[str, float] = {}

    def length(value: Any, depth: int) -> float:
        if not isinstance(value, dict | list):
            return len(json.dumps(value))
        if depth == _MOST_DEPTH:
            return inf
        if isinstance(value, list):
            return 2 + sum(1 + length(item, depth + 1) for item in value)
        if any(key in value for key in _UNBOUNDED):
            return inf
        parts = sum(len(json.dumps(key)) + 4 + length(part, depth + 1) for key, part in _used(value))
        parts += referred(value.get("$ref"), depth + 1)
        return parts * max(map(_count, map(value.get, _REPETITIONS)))

    def referred(target: Any, depth: int) -> float:
        if not isinstance(target, str):
            return 0
        if target not in found:
            found[target] = inf  # until it is known: a schema that refers to itself has no bound
            place = resolved(schema, target)
            found[target] = inf if place is None else length(place, depth)
        return found[target]

    return length(schema, 0)


def _used(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the keywords of a schema; definitions count where they are referred to."""
    return ((key, part) for key, part in schema.items() if key not in ("$defs", "definitions"))


def _count(value: Any) -> float:
    return max(1.0, value) if isinstance(value, int | float) else 1.0
