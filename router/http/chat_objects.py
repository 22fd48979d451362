"""Objects of chat responses, whole and in chunks, in OpenAI's shape."""

from typing import Any, Literal

from router.http.objects import ChoiceHead, Envelope, Extension, FinishReason, ResponseModel
from router.tools.parts import CallPart, Parts


class RankedLogprob(ResponseModel):
    """One of the most likely tokens at a position; its bytes may be a part of a character.

    A special token has none. In `token`, bytes that are no characters have OpenAI's notation for them.
    """

    token: str
    logprob: float
    bytes: list[int] | None


class ChatLogprob(RankedLogprob):
    """A token with the most likely ones at its position."""

    top_logprobs: list[RankedLogprob]


class ChatLogprobs(ResponseModel):
    """One entry for each token."""

    content: list[ChatLogprob]
    refusal: None = None


class CalledFunction(ResponseModel):
    """A called tool; the arguments are JSON as text, which the model may have left invalid."""

    name: str
    arguments: str


class ToolCall(ResponseModel):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class WithReasoning(ResponseModel):
    """Reasoning of the model, or a new part of it; `reasoning_content` is the older name."""

    reasoning: str | None = None
    reasoning_content: str | None = None


class AssistantMessage(WithReasoning):
    """Answer of the model; `function_call` is the older form of a call."""

    role: Literal["assistant"]
    content: str | None
    refusal: None = None
    tool_calls: list[ToolCall] | None = None
    function_call: CalledFunction | None = None


class ChatChoice(ChoiceHead):
    """One answer."""

    message: AssistantMessage
    logprobs: ChatLogprobs | None


class ChatCompletion(Envelope):
    """A response of `/v1/chat/completions`."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class FunctionDelta(ResponseModel):
    """New part of a called tool; the name is sent once."""

    name: str | None = None
    arguments: str


class ToolCallDelta(ResponseModel):
    """New part of the call with this index; id and type are sent once, in its first part."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class Delta(WithReasoning):
    """New part of a message; the role is sent once, in the first one."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None
    function_call: FunctionDelta | None = None


class ChatChunkChoice(ResponseModel):
    """Part of one answer."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class ChatChunk(Envelope):
    """A chunk of a response of `/v1/chat/completions`."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    flyserve: Extension | None = None


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
