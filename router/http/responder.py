"""Run an HTTP request until its client disconnects; send the response, whole or as server-sent events."""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fly.errors import DeadlineExceeded, InvalidRequest
from fly.request import GenerateRequest
from fly.response import Chunk, Round, Statistics, join_chunks
from fly.types import Token
from router.generation.choices import end_tasks, run_all
from router.generation.generation import Emit
from router.http.api_format import ApiFormat, HttpRequest
from router.http.errors import renamed, reply_to
from router.http.objects import Envelope, Extension, NamedToken, Usage, VerdictToken
from router.service import GenerationService


@dataclass(slots=True)
class UsageCounter:
    """Number of tokens of one HTTP request so far."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def usage(self) -> Usage:
        prompt, completion = self.prompt_tokens, self.completion_tokens
        return Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)


async def run_requests(
    service: GenerationService, http_request: HttpRequest, counter: UsageCounter, emit: Emit
) -> None:
    """Generate every choice of every prompt; if one fails, cancel the others.

    Args:
        service: Serves the requests.
        http_request: Requests to serve.
        counter: Counts their tokens.
        emit: Takes each chunk, with the choice's index among all of the HTTP request; one chunk at a time.

    Raises:
        InvalidRequest: With the fields named as in the body.
        DeadlineExceeded: The request's timeout has passed.
        FlyServeError: Error of the first request that failed.
    """
    turn, timeout_s = asyncio.Lock(), http_request.timeout_s

    async def serve(request: GenerateRequest, first: int) -> None:
        async def emit_in_turn(chunk: Chunk) -> None:
            async with turn:
                counter.prompt_tokens += chunk.prompt_tokens
                counter.completion_tokens += len(chunk.tokens)
                await emit(replace(chunk, choice_index=first + chunk.choice_index) if first else chunk)

        await service.serve(request, timeout_s, emit_in_turn, http_request.traceparent)

    try:
        async with asyncio.timeout(timeout_s) as limit:
            requests = enumerate(http_request.requests)
            await run_all(serve(request, index * request.n) for index, request in requests)
    except InvalidRequest as error:
        raise renamed(error, http_request.names) from None
    except TimeoutError:
        if not limit.expired():
            raise
        raise DeadlineExceeded(f"the request's timeout of {timeout_s:g} s has passed") from None


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do the work; if the client disconnects first, cancel the work and raise ClientDisconnect.

    `receive` reports the end of the connection; the body has been read from it. The work has always ended
    when this returns or raises; its own errors are raised.
    """
    working, leaving = asyncio.create_task(work), asyncio.create_task(_left(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        working.result()
    finally:
        await end_tasks((working, leaving))


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


_DONE = b"[DONE]"
_EVENT_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    # A proxy that buffers responses would delay tokens.
    (b"x-accel-buffering", b"no"),
]


class Responder:
    """Generates the response to one HTTP request and sends it."""

    def __init__(
        self, service: GenerationService, api_format: ApiFormat, request: HttpRequest, request_id: str
    ) -> None:
        self._service = service
        self._format = api_format
        self._request = request
        self._counter = UsageCounter()
        self._head = {
            "id": f"{api_format.id_prefix}{request_id}",
            "created": int(time.time()),
            "model": request.model,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Generate and send; all work ends with this call, and at once when the client disconnects.

        Raises:
            FlyServeError: The request failed before anything was sent.
        """
        work = self._stream(send) if self._request.stream else self._whole(scope, receive, send)
        await while_connected(receive, work)

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        chunks: defaultdict[int, list[Chunk]] = defaultdict(list)

        async def collect(chunk: Chunk) -> None:
            chunks[chunk.choice_index].append(chunk)

        await run_requests(self._service, self._request, self._counter, collect)
        choices = [self._whole_choice(index, chunks[index]) for index in sorted(chunks)]
        kind, name = self._format.response_type, self._format.response_object
        whole = self._envelope(kind, name, choices, usage=self._counter.usage)
        await Response(whole.to_json(), media_type="application/json")(scope, receive, send)

    def _whole_choice(self, index: int, chunks: Sequence[Chunk]) -> Any:
        choice, warnings = join_chunks(index, chunks), chunks[-1].warnings
        extra = self._extension(choice.tokens, choice.rounds, choice.statistics, warnings)
        return self._format.choice(choice, extra)

    async def _stream(self, send: Send) -> None:
        events, sent = _Events(send), dict[int, int]()

        async def emit(chunk: Chunk) -> None:
            index = chunk.choice_index
            await events.send(self._chunk(chunk, sent.get(index)).to_json())
            sent[index] = sent.get(index, 0) + sum(len(token.text) for token in chunk.tokens)

        try:
            await run_requests(self._service, self._request, self._counter, emit)
            if self._request.include_usage:
                await events.send(self._usage_chunk().to_json())
        except Exception as error:
            if not events.have_begun:
                raise
            await events.send(json.dumps(reply_to(error).content).encode())
        await events.end()

    def _chunk(self, chunk: Chunk, sent: int | None) -> Envelope:
        extra = self._extension(chunk.tokens, chunk.rounds, chunk.statistics, chunk.warnings)
        if self._request.include_usage:
            extra["usage"] = self._counter.usage if self._request.continuous_usage else None
        choice = self._format.chunk_choice(chunk, sent)
        return self._envelope(self._format.chunk_type, self._format.chunk_object, [choice], **extra)

    def _usage_chunk(self) -> Envelope:
        kind, name = self._format.chunk_type, self._format.chunk_object
        return self._envelope(kind, name, [], usage=self._counter.usage)

    def _envelope(self, kind: type[Envelope], name: str, choices: Sequence[Any], **extra: Any) -> Envelope:
        return kind(**self._head, object=name, choices=list(choices), **extra)

    def _extension(
        self,
        tokens: Sequence[Token],
        rounds: Sequence[Round],
        statistics: Statistics | None,
        warnings: Sequence[str],
    ) -> dict[str, Any]:
        """Return the field that has the verdicts, if they were requested."""
        if not self._request.verdicts:
            return {}
        ending = {} if statistics is None else {"statistics": statistics, "warnings": list(warnings)}
        verdicts = [_verdict_token(token) for token in tokens]
        return {"flyserve": Extension(tokens=verdicts, rounds=list(rounds), **ending)}


def _verdict_token(token: Token) -> VerdictToken:
    return VerdictToken(
        id=token.id,
        text=token.text,
        verdict=token.verdict.value,
        entropy=token.entropy,
        choice=None if token.choice == token.id else NamedToken(id=token.choice, text=token.choice_text),
    )


class _Events:
    """Server-sent events; the response begins with the first one.

    Attributes:
        have_begun: True once an error can no longer be reported by an HTTP status.
    """

    def __init__(self, send: Send) -> None:
        self.have_begun = False
        self._send = send

    async def send(self, data: bytes) -> None:
        if not self.have_begun:
            self.have_begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _EVENT_HEADERS})
        await self._send({"type": "http.response.body", "body": b"data: %b\n\n" % data, "more_body": True})

    async def end(self) -> None:
        await self.send(_DONE)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
