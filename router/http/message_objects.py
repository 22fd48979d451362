"""Messages of responses from their parts: content, reasoning and tool calls."""

from typing import Any

from router.http.chat_objects import (
    AssistantMessage,
    CalledFunction,
    Delta,
    FunctionDelta,
    ToolCall,
    ToolCallDelta,
)
from router.tools.parts import CallPart, Parts


def whole_message(text: str, parts: Parts | None) -> AssistantMessage:
    """Return a whole message; without `parts` the text is its content."""
    if parts is None:
        return AssistantMessage(role="assistant", content=text, refusal=None)
    calls = [
        ToolCall(
            id=call.id,
            type="function",
            function=CalledFunction(name=call.name, arguments=call.arguments),
        )
        for call in parts.calls
    ]
    return AssistantMessage(
        role="assistant",
        content=None if calls and not parts.content else parts.content,
        refusal=None,
        **_reasoning(parts),
        **({"tool_calls": calls} if calls else {}),
    )


def message_delta(text: str, parts: Parts | None, is_first: bool) -> Delta:
    """Return a new part of a message; without `parts` the text is content."""
    role: dict[str, Any] = {"role": "assistant"} if is_first else {}
    if parts is None:
        return Delta(**role, content=text)
    is_empty = not (parts.reasoning or parts.calls)
    content = {"content": parts.content} if parts.content or is_empty else {}
    calls = {"tool_calls": [_call_delta(call) for call in parts.calls]} if parts.calls else {}
    return Delta(**role, **content, **_reasoning(parts), **calls)


def _reasoning(parts: Parts) -> dict[str, Any]:
    """Return the reasoning under both of its names; nothing if there is none."""
    return dict.fromkeys(("reasoning", "reasoning_content"), parts.reasoning) if parts.reasoning else {}


def _call_delta(call: CallPart) -> ToolCallDelta:
    if not call.name:
        return ToolCallDelta(index=call.index, function=FunctionDelta(arguments=call.arguments))
    function = FunctionDelta(name=call.name, arguments=call.arguments)
    return ToolCallDelta(index=call.index, id=call.id, type="function", function=function)
