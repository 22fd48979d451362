"""The library of grammars (llguidance): its tokenizer, its limits, and its errors in one line."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from services.common.grammars.schemas import loosened

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer


WHITESPACE = r"( |\n[ \t]{0,40})"
"""Whitespace between the parts of a JSON value: a space, or a new line with its indentation. Without a limit
a model may write spaces until the response is full."""


_MOST_CHARACTERS = 400
"""Longest reason of an error; the library repeats parts of the grammar in it."""


_MOST_KEYWORDS = 8
"""Keywords of one schema that an error names."""


class GrammarError(Exception):
    """A grammar cannot be used, or has exceeded a limit of the library at some token."""


@dataclass(frozen=True, slots=True)
class SchemaFault:
    """Fault of a schema in a grammar.

    Attributes:
        error: Error of the library.
        keywords: Paths of the first keywords that it cannot apply; none if it cannot apply the whole.
        looser: The schema without them; any object if there are none.
    """

    error: str
    keywords: tuple[str, ...]
    looser: Any


class FaultySchemas(GrammarError):
    """Schemas in a grammar cannot be used.

    Attributes:
        faults: Their faults by the name of each.
    """

    def __init__(self, message: str, faults: Mapping[str, SchemaFault]) -> None:
        super().__init__(message)
        self.faults = faults


class GrammarLost(GrammarError):
    """The process of a grammar has ended for no fault of the grammar."""


@cache
def parser_limits() -> "LLParserLimits":
    """Return the limits of one grammar. They bound its memory (about 50 MB), but not the time of a mask.

    The library checks `step_max_items` only between two rows of its parser, and takes a time that is
    quadratic in the items of a row: one grammar of 10 kB takes 0.5 s for a mask after 50 tokens, and more
    than 30 s after 100. So each grammar has a process, which is ended (`grammars.process`).
    """
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_items_in_row=2_000,
        max_lexer_states=25_000,
        max_grammar_size=500_000,
        verbose_errors=False,
    )


def load_tokenizer(tokenizer_json: str, vocab_size: int) -> "LLTokenizer":
    """Return the tokenizer of the text of a `tokenizer.json`; takes about a second for 128k tokens.

    Masks cover `vocab_size` tokens, or all of the tokenizer if it has more.

    Raises:
        GrammarError: The library cannot read this kind of tokenizer.
    """
    from llguidance import LLTokenizer

    try:
        tokenizer = LLTokenizer(tokenizer_json)
        if tokenizer.vocab_size < vocab_size:
            tokenizer = LLTokenizer(tokenizer_json, n_vocab=vocab_size)
    except Exception as error:  # the library raises many types here
        raise GrammarError(f"the model's tokenizer cannot be used for grammars: {one_line(error)}") from None
    return tokenizer


def compile_grammar(tokenizer: "LLTokenizer", grammar: str) -> "LLMatcher":
    """Return a matcher at the start of a grammar in the library's form; drops the GIL meanwhile.

    Raises:
        GrammarError: The grammar is invalid, or larger than the limits.
    """
    from llguidance import LLMatcher

    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())
    if matcher.is_error():
        raise GrammarError(one_line(matcher.get_error()))
    return matcher


def faults_of_schemas(grammar: str) -> dict[str, SchemaFault]:
    """Return the faults of the named schemas in a grammar in the library's form."""
    schemas = {
        each["name"]: each["json_schema"]
        for each in json.loads(grammar)["grammars"]
        if "name" in each and each.get("json_schema") is not None
    }
    errors = {name: _schema_error(schema) for name, schema in schemas.items()}
    return {name: _schema_fault(schemas[name], error) for name, error in errors.items() if error}


def _schema_fault(schema: Any, error: str) -> SchemaFault:
    looser, keywords = loosened(schema, lambda part: not _schema_error(part))
    if isinstance(looser, dict):
        looser["x-guidance"] = {**looser.get("x-guidance", {}), "coerce_one_of": True}
    if _schema_error(looser):
        looser, keywords = limit_whitespace({"type": "object"}), []
    named = tuple(path[:_MOST_CHARACTERS] for path in keywords[:_MOST_KEYWORDS])
    return SchemaFault(one_line(error), named, looser)


def _schema_error(schema: Any) -> str:
    """Return the library's error for a schema; "" if it has none."""
    from llguidance import LLMatcher

    form = json.dumps({"grammars": [{"json_schema": schema}]})
    return str(LLMatcher.validate_grammar(form, None, limits=parser_limits()))


def limit_whitespace(schema: Any) -> Any:
    """Return a JSON Schema with a limit on the whitespace of its values; options of its own come first.

    The library reports a schema, or options, of a wrong type.
    """
    own = schema.get("x-guidance", {}) if isinstance(schema, dict) else None
    if not isinstance(own, dict):
        return schema
    return {**schema, "x-guidance": {"whitespace_pattern": WHITESPACE, **own}}


def one_line(error: object) -> str:
    """Return the first line of an error of the library, and its reason; the others show the grammar again."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or ["no reason is known"]
    text = " ".join([lines[0], *(line for line in lines[1:] if line.startswith("error: "))])
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."
