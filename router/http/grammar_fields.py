"""Fields that name a grammar: OpenAI's `response_format`, and `structured_outputs` of vLLM."""

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator

from flyserve.core.errors import FieldViolation, InvalidRequest
from flyserve.core.grammar import Grammar, GrammarKind
from router.http.request_model import AtMost, RequestModel


def _schema(value: Any) -> Any:
    if not isinstance(value, dict | bool | str):
        raise ValueError("must be a JSON Schema: an object, true or false, or its text")
    return value


JsonSchema = Annotated[
    Any, PlainValidator(_schema, json_schema_input_type=dict[str, Any] | bool | str), AtMost("items")
]
"""A JSON Schema; vLLM takes its text, too."""


Choices = Annotated[list[str], Field(fail_fast=True), AtMost("grammar_characters", "choices")]
"""Texts, one of which is the response; each has at least one character of the grammar."""


class SchemaOptions(RequestModel):
    """Options of a JSON Schema.

    Attributes:
        description: Accepted without effect.
        strict: Accepted without effect: a response always keeps to its schema.
    """

    description: str | None = None
    strict: bool | None = None


class NamedSchema(SchemaOptions):
    """A JSON Schema with a name.

    Attributes:
        name: Accepted without effect.
        schema: The response is a JSON value that it allows.
    """

    name: str
    schema_: JsonSchema = Field(alias="schema")


class ResponseFormat(RequestModel):
    """Format of the response: any text, any JSON object, or a JSON value that a schema allows.

    Attributes:
        json_schema: The schema; only with type json_schema.
    """

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


class StructuredOutputs(RequestModel):
    """Constraint on the response in vLLM's form: exactly one field.

    Attributes:
        json: A JSON Schema.
        regex: Regular expression that matches the whole response.
        choice: The response is one of these texts.
        grammar: Grammar in Lark notation.
        json_object: Any JSON object.
    """

    json_: JsonSchema | None = Field(None, alias="json")
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None


class GrammarFields(RequestModel):
    """Fields that name a grammar; a request has one of them at most.

    Attributes:
        response_format: Text, a JSON object, or a JSON value that a schema allows.
        structured_outputs: Constraint in vLLM's form.
    """

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None

    @property
    def grammar(self) -> Grammar | None:
        """The grammar; raise InvalidRequest if there are several."""
        return self._only_grammar[1]

    @property
    def grammar_names(self) -> Mapping[str, str]:
        """Name of the field that has the grammar, by its name in `GenerateRequest`."""
        return {"grammar": self._only_grammar[0]}

    # NOTE: made once, because each prompt of a body asks for it, and a schema may be long.
    @cached_property
    def _only_grammar(self) -> tuple[str, Grammar | None]:
        given = [(name, grammar) for name, grammar in self._grammars().items() if grammar is not None]
        if len(given) > 1:
            raise InvalidRequest.of(given[1][0], f"must not be set with {given[0][0]}: both are grammars")
        return given[0] if given else ("response_format", None)

    def _grammars(self) -> dict[str, Grammar | None]:
        vllm = self.structured_outputs or StructuredOutputs()
        return {
            "response_format": _of_format(self.response_format),
            "structured_outputs.json": _of_schema(vllm.json_),
            "structured_outputs.regex": _of_text(GrammarKind.REGEX, vllm.regex),
            "structured_outputs.choice": _of_choices(vllm.choice),
            "structured_outputs.grammar": _of_text(GrammarKind.LARK, vllm.grammar),
            "structured_outputs.json_object": Grammar(GrammarKind.JSON_OBJECT) if vllm.json_object else None,
        }


def _of_format(given: ResponseFormat | None) -> Grammar | None:
    if given is None:
        return None
    field, has_schema = "response_format.json_schema", given.json_schema is not None
    if has_schema != (given.type == "json_schema"):
        found = f"must not be set with type {given.type}" if has_schema else "is missing"
        reason = "invalid_value" if has_schema else "missing_required_parameter"
        raise InvalidRequest(FieldViolation(field, found, reason))
    if given.json_schema is not None:
        return _of_schema(given.json_schema.schema_)
    return Grammar(GrammarKind.JSON_OBJECT) if given.type == "json_object" else None


def _of_schema(schema: dict[str, Any] | bool | str | None) -> Grammar | None:
    if schema is None or isinstance(schema, str):
        return _of_text(GrammarKind.JSON_SCHEMA, schema)
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema, ensure_ascii=False))


def _of_choices(choices: list[str] | None) -> Grammar | None:
    if choices is None:
        return None
    return Grammar(GrammarKind.CHOICE, json.dumps(choices, ensure_ascii=False))


def _of_text(kind: GrammarKind, text: str | None) -> Grammar | None:
    return None if text is None else Grammar(kind, text)
