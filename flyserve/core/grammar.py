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
class ArgumentsSchema:
    """JSON Schema of the arguments of a tool.

    Attributes:
        rule: Name by which the rules of calls refer to it.
        tool: Name of the tool.
        text: The schema.
        is_hint: True if the parts of it that cannot be applied are left out.
    """

    rule: str
    tool: str
    text: str
    is_hint: bool = False


@dataclass(frozen=True, slots=True)
class Grammar:
    """Constraint on the text of a response.

    Attributes:
        kind: Language of the text.
        text: The grammar; "" for `json_object`.
        before: Lark rules of what the response begins with, such as reasoning: the rule `before`, and those
            that it uses. The grammar itself begins after it. "" is nothing.
        heading: Lark text of what comes before the answer, after `before`, but not before calls.
        calls: Lark rules of tool calls, which the response may be instead: the rule `calls`, and those that
            it uses. "" is none. The router makes them; they are not sent.
        schemas: Schemas to which the rules of calls refer; not sent either.
        is_of_tools: True if all of it is calls of tools, or text and calls; only the router makes such ones.
    """

    kind: GrammarKind
    text: str = ""
    before: str = ""
    heading: str = ""
    calls: str = ""
    schemas: tuple[ArgumentsSchema, ...] = ()
    is_of_tools: bool = False
