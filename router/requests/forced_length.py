"""The length of the text that a grammar can force: a bound, found without spelling the text."""

import json
from decimal import Decimal
from math import inf
from typing import Any

from flyserve.core.grammar import Grammar, GrammarKind
from services.common.grammars.schemas import resolved

_MOST_DEPTH = 100
"""Levels and references within each other, beyond which no bound is looked for."""
_MOST_REPETITIONS = 1e6
"""Repetitions beyond which no bound is looked for: `router.limits.forced_characters` is less."""
_REPETITIONS = ("minItems", "minContains", "minProperties")
"""Keywords that repeat what they stand beside; those of a maximum, or of a length, force no text."""
_DEFINITIONS = {"$defs", "definitions"}
"""Keywords of a whole schema whose parts count where they are referred to; a constant may have such a key."""
_UNBOUNDED = ("pattern", "patternProperties", "$dynamicRef", "x-guidance")
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
        case GrammarKind.LARK if grammar.is_of_tools:  # the router made it
            own = len(grammar.text)
        case _:
            return inf
    return own + len(grammar.calls) + sum(_schema_length(json.loads(each.text)) for each in grammar.schemas)


def _schema_length(schema: Any) -> float:
    """Return the bound of a JSON Schema whose texts may be forced: all of them, each as often as required.

    Each part is visited once, however many references have it as their target or as a part of it.
    """
    found: dict[int, float] = {}

    def length(value: Any, depth: int) -> float:
        if not isinstance(value, dict | list):
            return _scalar_length(value)
        if id(value) not in found:
            found[id(value)] = inf  # until it is known: a schema that refers to itself has no bound
            found[id(value)] = inf if depth == _MOST_DEPTH else of_parts(value, depth)
        return found[id(value)]

    def of_parts(value: dict[str, Any] | list[Any], depth: int) -> float:
        if isinstance(value, list):
            return 2 + sum(1 + length(item, depth + 1) for item in value)
        if any(key in value for key in _UNBOUNDED):
            return inf
        used = value.keys() - _DEFINITIONS if value is schema else value.keys()
        parts = sum(len(json.dumps(key)) + 4 + length(value[key], depth + 1) for key in used)
        parts += referred(value.get("$ref"), depth + 1)
        return parts * max(map(_repetitions, map(value.get, _REPETITIONS)))

    def referred(target: Any, depth: int) -> float:
        if not isinstance(target, str):
            return 0
        place = resolved(schema, target)
        return inf if place is None else length(place, depth)

    return length(schema, 0)


def _scalar_length(value: Any) -> int:
    """Return the length of a value without parts; the library writes limits of numbers without exponents."""
    written = f"{Decimal(repr(value)):f}" if isinstance(value, float) else ""
    return max(len(json.dumps(value)), len(written))


def _repetitions(value: Any) -> float:
    """Return the number of repetitions that a keyword asks for: at least 1, and infinite if it is too large.

    NaN is too large. A value that is no number repeats nothing; within a constant it may be of any kind.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 1:
        return 1.0
    return float(value) if value <= _MOST_REPETITIONS else inf
