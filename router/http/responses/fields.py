"""Bodies of `/v1/responses`."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, PlainValidator, ValidationInfo
from pydantic_core import PydanticCustomError

from router.http.chat import ChatOptions
from router.http.fields import Count, SharedFields, Text, Whole
from router.http.grammar_fields import SchemaOptions
from router.http.hints import Effort, Verbosity
from router.http.messages import Arguments
from router.http.request_model import AtMost, RequestModel, SentBack
from router.http.tool_choice import Choice, NamedFunction, tool_choice_validator
from router.http.tool_fields import FunctionFields

LOGPROBS = "message.output_text.logprobs"
"""Value of `include` that returns log-probabilities."""


class MessageItem(SentBack):
    """A message."""

    type: Literal["message"] | None = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Text


class CallItem(SentBack):
    """A tool call of an earlier response."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: Arguments = ""


class CallOutputItem(SentBack):
    """The result of a tool call."""

    type: Literal["function_call_output"]
    call_id: Annotated[str, Field(min_length=1)]
    output: Text


class ReasoningContent(SentBack):
    """A part of a model's reasoning."""

    type: Literal["reasoning_text", "text"]
    text: str


class ReasoningItem(SentBack):
    """Reasoning of an earlier response; a summary and an encrypted form have no effect."""

    type: Literal["reasoning"]
    content: Annotated[list[ReasoningContent], Field(fail_fast=True), AtMost("items", "parts")] | None = None


Item = MessageItem | CallItem | CallOutputItem | ReasoningItem
"""An item of a conversation."""
_ITEMS: Mapping[Any, type[SentBack]] = {
    "message": MessageItem,
    "function_call": CallItem,
    "function_call_output": CallOutputItem,
    "reasoning": ReasoningItem,
}


def _item(value: Any, info: ValidationInfo) -> SentBack:
    """Return an item by its type; one without a type is a message.

    NOTE: a union of pydantic would add the type to the path of a fault, where clients have no such field.
    """
    if not isinstance(value, dict):
        raise ValueError("must be an object")
    if (kind := value.get("type") or "message") not in (*_ITEMS,):
        found = {"kind": str(kind)[:60], "listed": ", ".join(_ITEMS)}
        raise PydanticCustomError("unsupported", "has type {kind}, must be one of {listed}", found)
    return _ITEMS[kind].model_validate(_with_text(value, str(kind)), context=info.context)


def _with_text(item: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return an item with text: an answer, or the result of a call, may have none, as in a chat."""
    field = "output" if kind == "function_call_output" else "content"
    may_be_empty = field == "output" or item.get("role") == "assistant"
    return {**item, field: ""} if may_be_empty and item.get(field) is None else item


_AnyItem = Annotated[Item, PlainValidator(_item, json_schema_input_type=Item)]


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


class BuiltInTool(SentBack):
    """A tool that only OpenAI's models have; it is dropped with a warning."""

    type: Literal[
        "apply_patch",
        "code_interpreter",
        "computer",
        "computer_use_preview",
        "file_search",
        "image_generation",
        "local_shell",
        "mcp",
        "programmatic_tool_calling",
        "shell",
        "tool_search",
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    ]


_BUILT_IN = get_args(BuiltInTool.model_fields["type"].annotation)


def _tool(value: Any, info: ValidationInfo) -> FunctionTool | BuiltInTool:
    """Return a tool by its type, as `_item` does."""
    is_built_in = isinstance(value, dict) and value.get("type") in _BUILT_IN
    return (BuiltInTool if is_built_in else FunctionTool).model_validate(value, context=info.context)


_AnyTool = Annotated[Any, PlainValidator(_tool, json_schema_input_type=FunctionTool | BuiltInTool)]
"""NOTE: pydantic warns when it serializes tools as a union."""


class NamedTool(NamedFunction):
    """The tool that the model has to call."""

    type: Literal["function"]


class AllowedTools(RequestModel):
    """The tools that the model may call; the others are shown to it all the same."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1), AtMost("tools", "tools")]

    @property
    def choice(self) -> Choice:
        return Choice(self.mode, tuple(tool.name for tool in self.tools))


ToolChoice = Annotated[
    Any,
    tool_choice_validator(
        NamedTool,
        AllowedTools,
        '{"type": "function", "name": ...} or {"type": "allowed_tools", "mode": "auto", "tools": [...]}',
    ),
]
"""A mode, a `NamedTool` or `AllowedTools`."""


class TextFormat(SchemaOptions):
    """Form of the text: any, a JSON object, or a JSON value that a schema allows."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: Annotated[dict[str, Any], AtMost("items")] | None = Field(None, alias="schema")


class TextOptions(RequestModel):
    """Options of the text.

    Attributes:
        format: Form of the text.
        verbosity: A hint for the chat template, as in a chat.
    """

    format: TextFormat | None = None
    verbosity: Verbosity | None = None


class ReasoningOptions(SentBack):
    """Options of the reasoning; others, which only models of OpenAI's have, are accepted without effect.

    Attributes:
        effort: A hint for the chat template, as `reasoning_effort` in a chat.
    """

    effort: Effort | None = None


class ResponsesRequest(SharedFields, ChatOptions):
    """A body of `/v1/responses`.

    Attributes:
        input: A text of the user, or the items of a conversation.
        instructions: Text of a system message before the conversation.
        max_output_tokens: Most new tokens, those of reasoning included.
        tools: Functions that the model may call; tools that only OpenAI's models have are dropped.
        tool_choice: `auto` by default; `none` calls none, `required` at least one, a named tool that one.
            Allowed tools are some of all.
        parallel_tool_calls: False allows one call at most; by default true.
        text: Form of the text.
        truncation: With `auto`, too, a conversation that is too long is an error.
        include: `message.output_text.logprobs` returns the log-probability of every token of the text;
            other values have no effect.
        top_logprobs: Number of most likely tokens whose log-probabilities are returned, too.
        reasoning: Options of the reasoning; `thinking_token_budget` limits it.
        metadata: Returned as it is.
    """

    input: Items
    instructions: str | None = None
    max_output_tokens: Whole | None = None
    tools: Annotated[list[_AnyTool], AtMost("tools", "tools")] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    include: Annotated[list[str], AtMost(64)] | None = None
    top_logprobs: Count | None = None
    reasoning: ReasoningOptions | None = None
    metadata: Annotated[dict[str, str], AtMost(64, "entries")] | None = None

    @property
    def has_logprobs(self) -> bool:
        """True if log-probabilities are returned."""
        return LOGPROBS in (self.include or ())
