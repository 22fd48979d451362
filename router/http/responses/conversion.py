"""A body of `/v1/responses` as one of `/v1/chat/completions`, and the names of its fields there. Pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from fly.errors import FieldViolation, InvalidRequest
from router.http.errors import renamed
from router.http.responses.fields import (
    KINDS,
    CallItem,
    CallOutputItem,
    Item,
    MessageItem,
    NamedTool,
    ReasoningItem,
    ResponsesRequest,
    TextFormat,
)

_SAME = (
    *(
        "model",
        "stream",
        "temperature",
        "top_p",
        "parallel_tool_calls",
        "service_tier",
        "seed",
        "top_k",
        "min_p",
    ),
    *("cache_salt", "priority", "timeout", "chat_template_kwargs", "thinking_token_budget"),
)
"""Fields that a chat has under the same name."""
_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
}
"""Names of fields here by their names in a chat."""


_KIND = re.compile(rf"^(input\[\d+\])\.(?:{'|'.join(sorted(KINDS, key=len, reverse=True))})(?![a-z_])")


def chat_body(body: ResponsesRequest, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same request as the body of a chat; `data` is the body as it was sent.

    Raises:
        InvalidRequest: The form of the text has no schema.
    """
    chat = {name: data[name] for name in (*_SAME, "speculation") if data.get(name) is not None}
    chat["messages"] = list(_messages(body))
    if body.max_output_tokens is not None:
        chat["max_completion_tokens"] = body.max_output_tokens
    if body.tools:
        chat["tools"] = [
            {"type": "function", "function": tool.model_dump(exclude={"type"}, exclude_none=True)}
            for tool in body.tools
        ]
    if isinstance(body.tool_choice, NamedTool):
        chat["tool_choice"] = {"type": "function", "function": {"name": body.tool_choice.name}}
    elif body.tool_choice is not None:
        chat["tool_choice"] = body.tool_choice
    if body.text is not None and body.text.format is not None:
        chat["response_format"] = _format(body.text.format)
    return chat


def own_names(error: InvalidRequest) -> InvalidRequest:
    """Return an error of a chat with the names of fields of `/v1/responses`."""
    violations = renamed(error, _NAMES).violations
    return InvalidRequest(*(_with_flat_tools(violation) for violation in violations))


def without_kinds(error: InvalidRequest) -> InvalidRequest:
    """Return an error of a body without the types of items in the paths of fields."""
    return InvalidRequest(*(replace(v, field=_KIND.sub(r"\1", v.field)) for v in error.violations))


def own_name(name: str) -> str:
    """Return the name of a chat's field in `/v1/responses`."""
    return _NAMES.get(name, name)


def _with_flat_tools(violation: FieldViolation) -> FieldViolation:
    is_tool = violation.field.startswith("tools[")
    return replace(violation, field=violation.field.replace(".function", "", 1)) if is_tool else violation


def _format(given: TextFormat) -> dict[str, Any]:
    if given.type != "json_schema":
        return {"type": given.type}
    if given.schema_ is None or given.name is None:
        missing = "name" if given.schema_ is not None else "schema"
        raise InvalidRequest.of(f"text.format.{missing}", "is missing, type json_schema needs it")
    return {
        "type": "json_schema",
        "json_schema": {"name": given.name, "schema": given.schema_, "strict": given.strict},
    }


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
            yield {"role": "tool", "tool_call_id": item.call_id, "content": item.output}
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
            return {**answer, "reasoning": text} if text else answer
        case CallItem():
            call = {
                "id": item.call_id,
                "type": "function",
                "function": {"name": item.name, "arguments": item.arguments},
            }
            return {**answer, "tool_calls": [*answer.get("tool_calls", ()), call]}
        case MessageItem():
            return {**answer, "content": item.content}
    return answer


def _worth_sending(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a message unless it has reasoning alone."""
    if answer["content"] or "tool_calls" in answer:
        yield answer
