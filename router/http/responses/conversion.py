"""A body of `/v1/responses` in the form that conversations of all APIs have. Pure."""

from collections.abc import Iterator, Mapping
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
    return Conversation(list(_messages(body)), has_instructions=bool(body.instructions))


def _format(given: TextFormat) -> ResponseFormat:
    if given.type != "json_schema":
        return ResponseFormat(type=given.type)
    if given.schema_ is None or given.name is None:
        missing = "name" if given.schema_ is not None else "schema"
        raise InvalidRequest.of(f"text.format.{missing}", "is missing, type json_schema needs it")
    schema = NamedSchema.model_construct(name=given.name, schema_=given.schema_)
    return ResponseFormat.model_construct(type=given.type, json_schema=schema)


def _messages(body: ResponsesRequest) -> Iterator[dict[str, Any]]:
    """Yield the messages of a chat; reasoning, text and calls in a row are one message of the assistant."""
    if body.instructions:
        yield {"role": "system", "content": body.instructions}
    answer: dict[str, Any] | None = None
    for item in body.input:
        if answer is not None and not _continues(answer, item):
            yield from _worth_sending(answer)
            answer = None
        if isinstance(item, MessageItem) and item.role != "assistant":
            yield {"role": item.role, "content": item.content}
        elif isinstance(item, CallOutputItem):
            yield {"role": "tool", "content": item.output, "tool_call_id": item.call_id}
        else:
            answer = _extended(answer or {"role": "assistant", "content": ""}, item)
    if answer is not None:
        yield from _worth_sending(answer)


def _continues(answer: Mapping[str, Any], item: Item) -> bool:
    """Return True if an item belongs to the same message of the assistant."""
    if isinstance(item, CallItem):
        return True
    is_text = isinstance(item, MessageItem) and item.role == "assistant"
    return is_text and not answer["content"] and "tool_calls" not in answer


def _extended(answer: dict[str, Any], item: Item) -> dict[str, Any]:
    match item:
        case ReasoningItem():
            text = "".join(part.text for part in item.content or ())
            return {**answer, "reasoning_content": text} if text else answer
        case CallItem():
            function = {"name": item.name, "arguments": item.arguments}
            call = {"id": item.call_id, "type": "function", "function": function}
            return {**answer, "tool_calls": [*answer.get("tool_calls", ()), call]}
        case MessageItem():
            return {**answer, "content": item.content}
    return answer


def _worth_sending(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a message unless it has reasoning alone."""
    if answer["content"] or "tool_calls" in answer:
        yield answer
