"""Bodies of `/v1/responses`."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, PlainValidator, Tag
from pydantic_core import PydanticCustomError

from router.http.fields import (
    Count,
    Priority,
    RequestModel,
    SpeculationFields,
    TemplateVariables,
    Timeout,
    Whole,
)
from router.http.grammar_fields import SchemaOptions
from router.http.limited import AtMost
from router.http.tool_fields import FunctionFields, NamedFunction

SentBack = Annotated[list[Any], AtMost("items")]
"""A list of an earlier response, sent back without effect."""


class TextContent(RequestModel):
    """A part of a message; the last two fields are those of an earlier response, sent back."""

    type: Literal["input_text", "output_text"]
    text: str
    annotations: SentBack | None = None
    logprobs: SentBack | None = None


_PARTS = 'must be a text, or a list of parts such as {"type": "input_text", "text": "..."}'


def _joined(value: Any) -> Any:
    """Join the texts of parts; they are one text that an earlier stream had cut."""
    if not isinstance(value, list):
        return value
    if not all(isinstance(part, dict) for part in value):
        raise ValueError(_PARTS)
    kinds = [part.get("type") for part in value]
    if unknown := [kind for kind in kinds if kind not in ("input_text", "output_text")]:
        found = {"kind": str(unknown[0])[:60]}
        raise PydanticCustomError("unsupported", "has a part of type {kind}, only text is supported", found)
    if not all(map(_is_text, value)):
        raise ValueError(_PARTS)
    return "".join(part["text"] for part in value)


def _is_text(part: dict[str, Any]) -> bool:
    lists = (part.get(name) for name in ("annotations", "logprobs"))
    has_form = isinstance(part.get("text"), str) and all(isinstance(each, list | None) for each in lists)
    return has_form and not part.keys() - TextContent.model_fields.keys()


Content = Annotated[
    str, BeforeValidator(_joined, json_schema_input_type=str | list[TextContent]), AtMost("items", "parts")
]
"""A text, or a list of parts."""


class SentItem(RequestModel):
    """Base of the items of a conversation; `id` and `status` are those of an earlier response, sent back."""

    id: str | None = None
    status: str | None = None


class MessageItem(SentItem):
    """A message; `phase` is that of an earlier response, sent back."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    phase: str | None = None


class CallItem(SentItem):
    """A tool call of an earlier response."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class CallOutputItem(SentItem):
    """The result of a tool call."""

    type: Literal["function_call_output"]
    call_id: str
    output: Content


class ReasoningContent(RequestModel):
    """A part of a model's reasoning."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(SentItem):
    """Reasoning of an earlier response; a summary and an encrypted form have no effect."""

    type: Literal["reasoning"]
    summary: SentBack | None = None
    content: Annotated[list[ReasoningContent], Field(fail_fast=True), AtMost("items", "parts")] | None = None
    encrypted_content: str | None = None


KINDS = ("message", "function_call", "function_call_output", "reasoning")
"""Types of items."""


def _kind(item: Any) -> Any:
    """Return the type of an item; one without a type is a message."""
    return item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", None)


def _known(item: Any) -> Any:
    if not isinstance(item, dict):
        raise ValueError("must be an object")
    if (kind := _kind(item)) not in KINDS:
        listed = ", ".join(KINDS)
        raise PydanticCustomError(
            "unsupported",
            "has type {kind}, must be one of {listed}",
            {"kind": str(kind)[:60], "listed": listed},
        )
    return item


Item = MessageItem | CallItem | CallOutputItem | ReasoningItem
"""An item of a conversation."""
_AnyItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[CallOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(_kind),
    BeforeValidator(_known),
]


def _listed(value: Any) -> Any:
    """Return a text as the only message of a user."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise ValueError("must be a text, or a list of at least one item")
    return value


Items = Annotated[
    list[_AnyItem],
    Field(fail_fast=True),
    BeforeValidator(_listed, json_schema_input_type=str | list[_AnyItem]),
    AtMost("items"),
]
"""A conversation."""


class FunctionTool(FunctionFields):
    """A tool that the model may call."""

    type: Literal["function"]


class NamedTool(NamedFunction):
    """The tool that the model has to call."""

    type: Literal["function"]


def _choice(value: Any) -> str | NamedTool:
    if value in ("none", "auto", "required"):
        return str(value)
    match value:
        case {"type": "function", "name": str(name)} if len(value) == 2:
            return NamedTool(type="function", name=name)
    raise ValueError('must be "none", "auto", "required" or {"type": "function", "name": ...}')


ToolChoice = Annotated[
    str | NamedTool,
    PlainValidator(_choice, json_schema_input_type=Literal["none", "auto", "required"] | NamedTool),
]


class TextFormat(SchemaOptions):
    """Form of the text: any, a JSON object, or a JSON value that a schema allows."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: Annotated[dict[str, Any], AtMost("items")] | None = Field(None, alias="schema")


class TextOptions(RequestModel):
    """Options of the text.

    Attributes:
        format: Form of the text.
        verbosity: Accepted without effect.
    """

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesRequest(RequestModel):
    """A body of `/v1/responses`.

    Attributes:
        model: Name of the model, as in `/v1/models`.
        input: A text of the user, or the items of a conversation.
        instructions: Text of a system message before the conversation.
        max_output_tokens: Most new tokens, those of reasoning included.
        tools: Functions that the model may call.
        tool_choice: `auto` by default; `none` calls none, `required` at least one, a named tool that one.
        parallel_tool_calls: False allows one call at most; by default true.
        text: Form of the text.
        truncation: Only `disabled`: a conversation that is too long is an error.
        include: Accepted without effect.
        reasoning: Accepted without effect; `thinking_token_budget` limits the reasoning.
        metadata: Returned as it is.
        timeout: Seconds after which the client no longer needs the response, at most one day.
        speculation: Speculation parameters.
        thinking_token_budget: Most tokens of the reasoning, after which the answer begins.
    """

    model: str
    input: Items
    instructions: str | None = None
    max_output_tokens: Whole | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = None
    tools: Annotated[list[FunctionTool], AtMost("tools", "tools")] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    truncation: Literal["disabled"] | None = None
    include: Annotated[list[str], AtMost(64)] | None = None
    reasoning: Annotated[dict[str, Any], AtMost(64)] | None = None
    metadata: Annotated[dict[str, str], AtMost(64, "entries")] | None = None
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None
    seed: int | None = None
    top_k: int | None = None
    min_p: float | None = None
    cache_salt: str | None = None
    priority: Priority | None = None
    timeout: Timeout | None = None
    speculation: SpeculationFields | None = None
    chat_template_kwargs: TemplateVariables | None = None
    thinking_token_budget: Count | None = None
