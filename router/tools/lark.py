"""Pieces of grammars of tool calls, in the Lark notation of llguidance. Pure."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from services.common.grammars.library import WHITESPACE

GAP = f"GAP: /{WHITESPACE}/"
"""Terminal of white space between the parts of an object."""

Write = Callable[[str], str]
"""Return a marker in the notation of a grammar."""


@dataclass(frozen=True, slots=True)
class ArgumentsRule:
    """Arguments of one tool in a grammar.

    Attributes:
        reference: Text by which a rule refers to them.
        lines: Rules that they need.
        schemas: JSON Schemas to which the rules refer as `@name`, by name.
    """

    reference: str
    lines: str = ""
    schemas: Mapping[str, Any] = field(default_factory=dict)


def json_object(name: str, arguments: str, arguments_key: str) -> str:
    """Return a grammar of an object with the name and the arguments of one tool; it uses `GAP`.

    NOTE: the arguments stay a grammar of their own, so that `#` in their schema refers to that schema. No
    terminal is longer than those of a JSON Schema: the lexer would read an answer's object as a call.
    """
    head = ("{", '"name"', ":", f'"{name}"', ",", f'"{arguments_key}"', ":")
    return " GAP? ".join((*map(json.dumps, head), arguments, '"}"'))


def literal(text: str) -> str:
    """Return a text in the notation of a grammar, which takes no control character as it is."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def is_token(written: str) -> bool:
    """Return True if a marker in the notation of a grammar is one token."""
    return written.startswith("<[")


def without(marker: str) -> str:
    """Return the terminal of any text that does not have a marker in it."""
    return f"/(?s:.*)/ & ~/(?s:.*){_escaped(marker)}(?s:.*)/"


def up_to(marker: str) -> str:
    """Return the expression of any text that ends with a marker, for a rule that is `lazy`.

    NOTE: the lexer is greedy, so a marker that is no token must be part of a lazy rule.
    """
    return f"/(?s:.*){_escaped(marker)}/"


def _escaped(marker: str) -> str:
    return re.escape(marker).replace("/", "\\/")
