"""`/v1/responses`: requests as chats, and their responses, whole or as events."""

import json
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from flyserve.core.response import Chunk
from flyserve.core.types import FinishReason
from router.cost import cpu_s, off_loop
from router.generation.response import MessageChunk
from router.http.api_format import HttpRequest
from router.http.chat import Chat
from router.http.connection import EventStream
from router.http.errors import ErrorReply, reply_to
from router.http.parsing import parse
from router.http.responder import Responder
from router.http.responses.conversion import NAMES, asked_tools, chat_options, conversation_of
from router.http.responses.fields import LOGPROBS, ResponsesRequest
from router.http.responses.objects import (
    IncompleteDetails,
    InputDetails,
    OutputDetails,
    ResponseError,
    ResponseObject,
    ResponsesUsage,
)
from router.http.responses.output import Event, Output
from router.tools.parts import Parts


class ResponsesFormat(Chat):
    """API format of responses: that of a chat under other names."""

    id_prefix = "resp_"
    tracks_tokens = True

    def parse(self, data: Mapping[str, Any], request_id: str) -> HttpRequest:
        asked = parse(ResponsesRequest, data, self._limits)
        conversation, tools = conversation_of(asked), asked_tools(asked)
        request = self._renamed_request(chat_options(asked), conversation, tools, request_id, NAMES)
        warnings = list(request.warnings)
        if asked.truncation == "auto":
            warnings.append("truncation has no effect: a conversation that is too long is an error")
        if asked.top_logprobs and not asked.has_logprobs:
            warnings.append(f"top_logprobs has no effect without {LOGPROBS} in include")
        return replace(request, warnings=tuple(warnings), asked=asked)

    def _named(self, token: int, logprob: float) -> dict[str, Any]:
        """Return a token by itself; here the bytes of a special one are an empty list."""
        named = super()._named(token, logprob)
        return {**named, "bytes": named["bytes"] or []}


class ResponsesResponder(Responder):
    """Generates one response and sends it."""

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        output, finish_reason = Output(_new_id, makes_events=False), FinishReason.STOP_TOKEN

        async def collect(chunk: Chunk) -> None:
            nonlocal finish_reason
            list(self._added(output, chunk))
            finish_reason = chunk.finish_reason or finish_reason

        await self._generate(collect)
        content = await off_loop(self._end_cost_s, lambda: self._ended(output, finish_reason)[0].to_json())
        await Response(content, media_type="application/json")(scope, receive, send)

    async def _stream(self, send: Send) -> None:
        events, output, finish_reason = _NumberedEvents(send), Output(_new_id), FinishReason.STOP_TOKEN
        unsent = deque[Event]()  # that an error leaves, of a chunk that the output has

        async def begin() -> None:
            if not events.number:
                begun = self._object(output, "in_progress").model_dump()
                await events.send({"type": "response.created", "response": begun})
                await events.send({"type": "response.in_progress", "response": begun})

        async def emit(chunk: Chunk) -> None:
            nonlocal finish_reason
            await begin()
            cost_s = self._added_cost_s(output, chunk)
            await off_loop(cost_s, lambda: unsent.extend(self._added(output, chunk)))
            while unsent:
                await events.send(unsent.popleft(), cost_s)
            finish_reason = chunk.finish_reason or finish_reason

        try:
            await self._generate(emit)
            await begin()
            last = await off_loop(self._end_cost_s, lambda: self._last_events(output, finish_reason))
        except Exception as error:
            if not events.number:
                raise
            reply = reply_to(error)
            last = await off_loop(self._end_cost_s, lambda: self._failed_events(output, reply))
        for event in [*unsent, *last]:
            await events.send(event, self._end_cost_s)
        await events.end()

    def _added(self, output: Output, chunk: Chunk) -> Iterator[Event]:
        return output.add(_parts(chunk), cast(Chat, self._format).logprobs(chunk.tokens))

    def _added_cost_s(self, output: Output, chunk: Chunk) -> float:
        """Return the estimated CPU seconds of a chunk's events: an item's end repeats all of it."""
        if not output.ends_item(_parts(chunk)):
            return 0.0
        num_characters, num_logprobs = output.num_open
        return self._cost_s(num_logprobs) + cpu_s(characters=num_characters)

    def _last_events(self, output: Output, reason: FinishReason) -> list[Event]:
        response, events = self._ended(output, reason)
        return [*events, {"type": f"response.{response.status}", "response": response.model_dump()}]

    def _failed_events(self, output: Output, reply: ErrorReply) -> list[Event]:
        events = list(output.finish("incomplete"))
        error = ResponseError(code=reply.code or reply.kind, message=reply.message)
        response = self._object(output, "failed", error=error)
        return [*events, {"type": "response.failed", "response": response.model_dump()}]

    def _ended(self, output: Output, reason: FinishReason) -> tuple[ResponseObject, list[Event]]:
        """Return the whole response, and the events that end its last item."""
        is_cut = reason is FinishReason.LENGTH
        events = list(output.finish("incomplete" if is_cut else "completed"))
        if not is_cut:
            return self._object(output, "completed", usage=self._usage), events
        details = IncompleteDetails(reason="max_output_tokens")
        return self._object(output, "incomplete", usage=self._usage, incomplete_details=details), events

    @property
    def _usage(self) -> ResponsesUsage:
        usage = self._accounting.usage
        details, completion = usage.prompt_tokens_details, usage.completion_tokens_details
        reasoning = completion.reasoning_tokens if completion else 0
        return ResponsesUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputDetails(cached_tokens=details.cached_tokens if details else 0),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputDetails(reasoning_tokens=reasoning),
            total_tokens=usage.total_tokens,
        )

    def _object(self, output: Output, status: Any, **more: Any) -> ResponseObject:
        asked: ResponsesRequest = self._request.asked
        repeated = asked.model_dump(by_alias=True, exclude_none=True, include=_REPEATED)
        return ResponseObject(
            id=self._head["id"],
            created_at=self._head["created"],
            model=self._head["model"],
            service_tier=self._request.tier,
            status=status,
            output=list(output.items),
            warnings=list(self._found_warnings),
            **repeated | {"text": {"format": {"type": "text"}, **repeated.get("text", {})}},
            **more,
        )


_REPEATED = {
    *("instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "temperature", "text"),
    *("tool_choice", "tools", "top_logprobs", "top_p"),
}


class _NumberedEvents:
    """Server-sent events with names and sequence numbers.

    Attributes:
        number: Number of the next event.
    """

    def __init__(self, send: Send) -> None:
        self.number = 0
        self._events = EventStream(send)

    async def send(self, event: Event, cost_s: float = 0.0) -> None:
        """Send an event; making it into JSON takes about `cost_s`."""
        numbered = {**event, "sequence_number": self.number}
        self.number += 1
        data = await off_loop(cost_s, lambda: json.dumps(numbered, ensure_ascii=False).encode())
        await self._events.send(data, event["type"])

    async def end(self) -> None:
        await self._events.end()


def _parts(chunk: Chunk) -> Parts:
    return chunk.parts if isinstance(chunk, MessageChunk) else Parts(content=chunk.text)


def _new_id(prefix: str) -> str:
    return f"{prefix}{uuid.uuid4().hex}"
