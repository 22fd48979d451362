"""A body of `/v1/responses` in the form that conversations of all APIs have. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from flyserve.core.errors import InvalidRequest
from router.http.chat import ChatOptions, ChatRequest
from router.http.fields import SharedFields
from router.http.grammar_fields import NamedSchema, ResponseFormat
from router.http.messages import Conversation
from router.http.responses.fields import (
    BuiltInTool,
    CallItem,
    CallOutputItem,
    FunctionTool,
    Item,
    MessageItem,
    ReasoningItem,
    ReasoningOptions,
    ResponsesRequest,
    TextFormat,
    TextOptions,
)
from router.http.tool_choice import choice_of
from router.http.tool_fields import AskedTools

NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
}
"""Names of fields here by their names in a chat."""


def chat_options(body: ResponsesRequest) -> ChatRequest:
    """Return the fields of a chat other than its messages and tools; they are checked already.

    Raises:
        InvalidRequest: The form of the text has no schema.
    """
    same = (*SharedFields.model_fields, *ChatOptions.model_fields)
    text, reasoning = body.text or TextOptions(), body.reasoning or ReasoningOptions()
    return ChatRequest.model_construct(
        **{name: getattr(body, name) for name in same},
        max_completion_tokens=body.max_output_tokens,
        response_format=None if text.format is None else _format(text.format),
        reasoning_effort=reasoning.effort,
        verbosity=text.verbosity,
        logprobs=body.has_logprobs,
        top_logprobs=body.top_logprobs if body.has_logprobs else None,
    )


def asked_tools(body: ResponsesRequest) -> AskedTools:
    """Return the tools of a body."""
    tools = {f"tools[{at}]": tool for at, tool in enumerate(body.tools or ())}
    return AskedTools(
        functions={path: tool for path, tool in tools.items() if isinstance(tool, FunctionTool)},
        built_in={path: tool.type for path, tool in tools.items() if isinstance(tool, BuiltInTool)},
        choice=choice_of(body.tool_choice),
        parallel=body.parallel_tool_calls is not False,
    )


def conversation_of(body: ResponsesRequest) -> Conversation:
    """Return the conversation of a body."""
    return Conversation(list(_messages(body)))


def _format(given: TextFormat) -> ResponseFormat:
    if given.type != "json_schema":
        return ResponseFormat(type=given.type)
    if given.schema_ is None or given.name is None:
        missing = "name" if given.schema_ is not None else "schema"
        raise InvalidRequest.of(f"text.format.{missing}", "is missing, type json_schema needs it")
    schema = NamedSchema.model_construct(name=given.name, schema_=given.schema_)
    return ResponseFormat.model_construct(type=given.type, json_schema=schema)


@dataclass(slots=True)
class _Answer:
    """Items in a row that are one message of the assistant: reasoning, text and calls."""

    reasoning: str = ""
    texts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def continues(self, item: Item) -> bool:
        """Return True if an item belongs to this message, as text between calls does."""
        if isinstance(item, CallItem):
            return True
        is_text = isinstance(item, MessageItem) and item.role == "assistant"
        return is_text and (not self.texts or bool(self.calls))

    def add(self, item: Item) -> None:
        """Add the next item."""
        match item:
            case ReasoningItem():
                self.reasoning = "".join(part.text for part in item.content or ())
            case CallItem():
                function = {"name": item.name, "arguments": item.arguments}
                self.calls.append({"id": item.call_id, "type": "function", "function": function})
            case MessageItem() if item.content:
                self.texts.append(item.content)

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield the message, unless it has reasoning alone."""
        if self.texts or self.calls:
            reasoning = {"reasoning_content": self.reasoning} if self.reasoning else {}
            calls = {"tool_calls": self.calls} if self.calls else {}
            yield {"role": "assistant", "content": "\n".join(self.texts), **reasoning, **calls}


def _messages(body: ResponsesRequest) -> Iterator[dict[str, Any]]:
    """Yield the messages of a chat."""
    if body.instructions:
        yield {"role": "system", "content": body.instructions}
    answer: _Answer | None = None
    for item in body.input:
        if answer is not None and not answer.continues(item):
            yield from answer.messages()
            answer = None
        if isinstance(item, MessageItem) and item.role != "assistant":
            yield {"role": item.role, "content": item.content}
        elif isinstance(item, CallOutputItem):
            yield {"role": "tool", "content": item.output, "tool_call_id": item.call_id}
        else:
            answer = answer or _Answer()
            answer.add(item)
    if answer is not None:
        yield from answer.messages()
