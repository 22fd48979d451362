"""A grammar: the constraint that a client puts on the text of a response."""

from dataclasses import dataclass
from enum import StrEnum


class GrammarKind(StrEnum):
    """Language in which a grammar is written."""

    JSON_SCHEMA = "json_schema"
    """A JSON Schema; the response is a JSON value that it allows."""
    JSON_OBJECT = "json_object"
    """Any JSON object; the grammar has no text."""
    REGEX = "regex"
    """A regular expression that matches the whole response."""
    CHOICE = "choice"
    """A JSON list of texts; the response is one of them."""
    LARK = "lark"
    """A context-free grammar in the Lark notation of llguidance."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """Constraint on the text of a response.

    Attributes:
        kind: Language of the text.
        text: The grammar; "" for `json_object`.
        before: Lark rules of what the response begins with, such as reasoning: the rule `before`, and those
            that it uses. The grammar itself begins after it. "" is nothing.
        schemas: JSON Schemas inside a grammar in Lark notation that the router made itself; not sent.
    """

    kind: GrammarKind
    text: str = ""
    before: str = ""
    schemas: tuple[str, ...] = ()
