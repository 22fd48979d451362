"""`/v1/responses`: requests as chats, and their responses, whole or as events."""

import json
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from flyserve.core.response import Chunk
from flyserve.core.types import FinishReason
from router.generation.response import MessageChunk
from router.http.api_format import HttpRequest
from router.http.chat import Chat
from router.http.connection import EventStream
from router.http.errors import reply_to
from router.http.parsing import parse
from router.http.responder import Responder
from router.http.responses.conversion import NAMES, asked_tools, chat_options, conversation_of
from router.http.responses.fields import ResponsesRequest
from router.http.responses.objects import (
    IncompleteDetails,
    InputDetails,
    OutputDetails,
    ResponseObject,
    ResponsesUsage,
)
from router.http.responses.output import Output
from router.tools.parts import Parts

_LOGPROBS = "message.output_text.logprobs"


class ResponsesFormat(Chat):
    """API format of responses: that of a chat under other names."""

    id_prefix = "resp_"

    def parse(self, data: Mapping[str, Any], request_id: str) -> HttpRequest:
        asked = parse(ResponsesRequest, data, self._limits)
        conversation, tools = conversation_of(asked), asked_tools(asked)
        request = self._renamed_request(chat_options(asked), conversation, tools, request_id, NAMES)
        warnings = list(request.warnings)
        if asked.truncation == "auto":
            warnings.append("truncation has no effect: a conversation that is too long is an error")
        if _LOGPROBS in (asked.include or ()):
            warnings.append(f"include has no effect: {_LOGPROBS} is not supported, a chat has logprobs")
        return replace(request, warnings=tuple(warnings), asked=asked)


class ResponsesResponder(Responder):
    """Generates one response and sends it."""

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        output, finish_reason = Output(_new_id), FinishReason.STOP_TOKEN

        async def collect(chunk: Chunk) -> None:
            nonlocal finish_reason
            list(output.add(self._message_parts(chunk)))
            finish_reason = chunk.finish_reason or finish_reason

        await self._generate(collect)
        content = self._ended(output, finish_reason)[0].to_json()
        await Response(content, media_type="application/json")(scope, receive, send)

    async def _stream(self, send: Send) -> None:
        events, output, finish_reason = _NumberedEvents(send), Output(_new_id), FinishReason.STOP_TOKEN

        async def begin() -> None:
            if not events.number:
                begun = self._object(output, "in_progress").model_dump()
                await events.send({"type": "response.created", "response": begun})
                await events.send({"type": "response.in_progress", "response": begun})

        async def emit(chunk: Chunk) -> None:
            nonlocal finish_reason
            await begin()
            for event in output.add(self._message_parts(chunk)):
                await events.send(event)
            finish_reason = chunk.finish_reason or finish_reason

        try:
            await self._generate(emit)
            await begin()
            response, last_events = self._ended(output, finish_reason)
            for event in last_events:
                await events.send(event)
            kind = f"response.{response.status}"
            await events.send({"type": kind, "response": response.model_dump()})
        except Exception as error:
            if not events.number:
                raise
            failed = reply_to(error)
            shown = {"message": failed.message, "code": failed.code, "param": failed.param}
            await events.send({"type": "error", **shown})
        await events.end()

    def _message_parts(self, chunk: Chunk) -> Parts:
        return chunk.parts if isinstance(chunk, MessageChunk) else Parts(content=chunk.text)

    def _ended(self, output: Output, reason: FinishReason) -> tuple[ResponseObject, list[Mapping[str, Any]]]:
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
            **{"text": {"format": {"type": "text"}}, **repeated},
            **more,
        )


_REPEATED = {
    *("instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "temperature", "text"),
    *("tool_choice", "tools", "top_p"),
}


class _NumberedEvents:
    """Server-sent events with names and sequence numbers.

    Attributes:
        number: Number of the next event.
    """

    def __init__(self, send: Send) -> None:
        self.number = 0
        self._events = EventStream(send)

    async def send(self, event: Mapping[str, Any]) -> None:
        data = json.dumps({**event, "sequence_number": self.number}, ensure_ascii=False)
        self.number += 1
        await self._events.send(data.encode(), event["type"])

    async def end(self) -> None:
        await self._events.end()


def _new_id(prefix: str) -> str:
    return f"{prefix}{uuid.uuid4().hex}"
