"""Generate the response to an HTTP request, and send it whole or as server-sent events."""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from flyserve.core.errors import DeadlineExceeded, InvalidRequest
from flyserve.core.request import GenerateRequest
from flyserve.core.response import Chunk, Round, Statistics, join_chunks
from flyserve.core.types import PromptToken, Token
from router.cost import cpu_s, num_values, off_loop
from router.generation.choices import run_all
from router.generation.generation import Emit
from router.generation.response import MessageChunk
from router.http.accounting import Accounting
from router.http.api_format import ApiFormat, HttpRequest
from router.http.connection import EventStream
from router.http.errors import renamed, renamed_text, reply_to
from router.http.fields import StreamOptions
from router.http.objects import Envelope, Extension, NamedToken, VerdictToken
from router.http.text_frames import TextFrames
from router.service import GenerationService
from router.tools.parts import Parts, join_parts

_DONE = b"[DONE]"


class Responder:
    """Generates the response to one HTTP request and sends it."""

    def __init__(
        self,
        service: GenerationService,
        api_format: ApiFormat,
        request: HttpRequest,
        request_id: str,
        *,
        timeout_s: float | None,
        traceparent: str,
        sends_metrics: bool = False,
    ) -> None:
        """Prepare the response; `sends_metrics` adds the acceptance of its drafts.

        The client needs it within `timeout_s`, None is no limit. `traceparent` is the context of the client's
        trace (W3C), "" without one.
        """
        self._service = service
        self._format = api_format
        self._request = request
        self._options = request.body.stream_options or StreamOptions()
        self._timeout_s = timeout_s
        self._traceparent = traceparent
        self._accounting = Accounting()
        self._sends_metrics = sends_metrics
        self._prompts: dict[int, tuple[PromptToken, ...]] = {}
        self._found_warnings: dict[str, None] = dict.fromkeys(request.warnings)
        self._head = {
            "id": f"{api_format.id_prefix}{request_id}",
            "created": int(time.time()),
            "model": request.body.model,
            **({} if request.tier is None else {"service_tier": request.tier}),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Generate and send; all work ends with this call.

        Raises:
            FlyServeError: The request failed before anything was sent.
        """
        await (self._stream(send) if self._request.body.stream else self._whole(scope, receive, send))

    async def _generate(self, emit: Emit) -> None:
        """Generate every choice of every prompt; if one fails, cancel the others.

        A batch that is larger than all places runs in turns. `emit` takes each chunk, with the choice's index
        among all of the HTTP request; one chunk at a time.

        Raises:
            InvalidRequest: With the fields named as in the body.
            DeadlineExceeded: The request's timeout has passed.
            FlyServeError: Error of the first request that failed.
        """
        turn = asyncio.Lock()
        num_at_once = self._service.num_at_once(self._request.requests[0])
        places = asyncio.Semaphore(num_at_once)

        async def serve(request: GenerateRequest, index: int) -> None:
            first = index * request.n

            async def emit_in_turn(chunk: Chunk) -> None:
                async with turn:
                    self._accounting.add(chunk, index)
                    if chunk.warnings:
                        self._found_warnings |= dict.fromkeys(self._named(chunk.warnings))
                    if chunk.prompt:
                        self._prompts[index] = chunk.prompt
                        return
                    await emit(replace(chunk, choice_index=first + chunk.choice_index) if first else chunk)

            streams = bool(self._request.body.stream)
            async with places:
                await self._service.serve(
                    request,
                    self._timeout_s,
                    emit_in_turn,
                    self._traceparent,
                    streams,
                    self._request.message_format,
                    is_admitted=index >= num_at_once,
                )

        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                requests = enumerate(self._request.requests)
                await run_all(serve(request, index) for index, request in requests)
        except InvalidRequest as error:
            raise renamed(error, self._request.names) from None
        except TimeoutError:
            if not limit.expired():
                raise
            raise DeadlineExceeded(f"the request's timeout of {self._timeout_s:g} s has passed") from None

    @property
    def _totals(self) -> dict[str, Any]:
        """Figures of the whole request, for the end of its response."""
        return {"usage": self._accounting.usage, **self._metrics}

    @property
    def _metrics(self) -> dict[str, Any]:
        """Acceptance of all drafts, if it is sent."""
        return {"metrics": self._accounting.metrics} if self._sends_metrics else {}

    @property
    def _warnings(self) -> dict[str, Any]:
        """Warnings so far; nothing if there are none."""
        return {"warnings": list(self._found_warnings)} if self._found_warnings else {}

    def _named(self, warnings: Sequence[str]) -> list[str]:
        """Return warnings with the names of the body's fields."""
        return [renamed_text(each, self._request.names) for each in warnings]

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        chunks: defaultdict[int, list[Chunk]] = defaultdict(list)
        parts: defaultdict[int, list[Parts]] = defaultdict(list)
        keeps_tokens = bool(self._request.body.verdicts) or self._request.requests[0].logprobs is not None

        async def collect(chunk: Chunk) -> None:
            chunks[chunk.choice_index].append(chunk if keeps_tokens else _without_tokens(chunk))
            if isinstance(chunk, MessageChunk):
                parts[chunk.choice_index].append(chunk.parts)

        await self._generate(collect)

        def make() -> bytes:
            # NOTE: freed here, because freeing a long response would block the event loop, too.
            choices = [self._whole_choice(i, chunks.pop(i), parts.pop(i, ())) for i in sorted(chunks)]
            self._prompts.clear()
            return self._envelope(self._format.response, choices, **self._totals, **self._warnings)

        content = await off_loop(self._end_cost_s, make)
        await Response(content, media_type="application/json")(scope, receive, send)

    def _cost_s(self, num_tokens: int = 0) -> float:
        """Return the estimated CPU seconds of making tokens and all prompts, which may be long, into JSON."""
        asked = self._request.requests[0]
        of_prompts = num_values(sum(map(len, self._prompts.values())), asked.prompt_logprobs)
        return cpu_s(values=of_prompts + num_values(num_tokens, asked.logprobs))

    @property
    def _end_cost_s(self) -> float:
        """Estimated CPU seconds of making the whole response into JSON."""
        return self._cost_s(self._accounting.usage.completion_tokens)

    def _whole_choice(self, index: int, chunks: Sequence[Chunk], parts: Sequence[Parts]) -> Any:
        choice, warnings = join_chunks(index, chunks), chunks[-1].warnings
        extra = self._extension(choice.tokens, choice.rounds, choice.statistics, warnings)
        message = join_parts(parts) if parts else None
        made = self._format.choice(choice, extra, len(self._echo(index)), message)
        return self._request.final(self._echoed(made, index))

    def _echo(self, index: int) -> str:
        """Return the text of the prompt that a choice begins with; empty without `echo`."""
        echoes = self._request.echoes
        return echoes[index // self._request.requests[0].n] if echoes else ""

    def _echoed(self, choice: Any, index: int) -> Any:
        """Return a choice, or its first part, that begins with its prompt if the request has `echo`."""
        if not self._request.echoes:
            return choice
        tokens = self._prompts.get(index // self._request.requests[0].n, ())
        return self._format.with_echo(choice, self._echo(index), tokens)

    async def _stream(self, send: Send) -> None:
        events, sent, ending = EventStream(send), dict[int, int](), [_DONE]
        frames = TextFrames(lambda chunk: self._chunk(chunk, 0))

        async def emit(chunk: Chunk) -> None:
            index = chunk.choice_index
            if index not in sent:
                sent[index] = len(self._echo(index))
                data = await off_loop(self._cost_s(), partial(self._first_chunk, chunk))
            else:
                data = self._chunk(chunk, sent[index]) if self._has_figures else frames.json(chunk)
            await events.send(data)
            if self._has_figures:
                sent[index] += sum(len(token.text) for token in chunk.tokens)

        try:
            await self._generate(emit)
            if self._options.include_usage:
                ending = [self._envelope(self._format.chunk, [], **self._totals), _DONE]
        except Exception as error:
            if not events.have_begun:
                raise
            ending = [json.dumps(reply_to(error).content).encode(), _DONE]
        await events.end(*ending)

    @property
    def _has_figures(self) -> bool:
        """True if a chunk has more than text: figures of its tokens, or the usage so far."""
        asked, options = self._request, self._options
        return bool(
            asked.body.verdicts or asked.requests[0].logprobs is not None or options.continuous_usage_stats
        )

    def _first_chunk(self, chunk: Chunk) -> bytes:
        """Return the first chunk of a choice, which may begin with its prompt."""
        index = chunk.choice_index
        first = self._format.chunk_choice(chunk, len(self._echo(index)) or None, _parts(chunk))
        return self._choice_chunk(self._echoed(first, index), chunk)

    def _chunk(self, chunk: Chunk, sent: int) -> bytes:
        """Return a chunk of a choice of which `sent` characters have been sent."""
        choice = self._format.chunk_choice(chunk, sent, _parts(chunk))
        return self._choice_chunk(choice, chunk)

    def _choice_chunk(self, choice: Any, chunk: Chunk) -> bytes:
        """Return the chunk that has a part of a choice, and the figures that come with it."""
        extra = self._extension(chunk.tokens, chunk.rounds, chunk.statistics, chunk.warnings)
        if chunk.finish_reason is not None:
            extra |= self._warnings
        if self._options.include_usage:
            extra["usage"] = self._accounting.usage if self._options.continuous_usage_stats else None
        elif self._accounting.num_ended == len(self._request.requests) * self._request.requests[0].n:
            extra |= self._metrics
        return self._envelope(self._format.chunk, [self._request.final(choice)], **extra)

    def _envelope(self, shape: tuple[type[Envelope], str], choices: Sequence[Any], **extra: Any) -> bytes:
        """Return a response or a chunk as JSON."""
        kind, name = shape
        return kind(**self._head, object=name, choices=list(choices), **extra).to_json()

    def _extension(
        self,
        tokens: Sequence[Token],
        rounds: Sequence[Round],
        statistics: Statistics | None,
        warnings: Sequence[str],
    ) -> dict[str, Any]:
        """Return the field that has the verdicts, if they were requested."""
        if not self._request.body.verdicts:
            return {}
        named = self._named(warnings)
        ending = {} if statistics is None else {"statistics": statistics, "warnings": named}
        verdicts = [_verdict_token(token) for token in tokens]
        return {"flyserve": Extension(tokens=verdicts, rounds=list(rounds), **ending)}


def _parts(chunk: Chunk) -> Parts | None:
    return chunk.parts if isinstance(chunk, MessageChunk) else None


def _without_tokens(chunk: Chunk) -> Chunk:
    """Return what a whole response without figures of its tokens takes from a chunk."""
    return Chunk(
        text=chunk.text,
        finish_reason=chunk.finish_reason,
        statistics=chunk.statistics,
        warnings=chunk.warnings,
    )


def _verdict_token(token: Token) -> VerdictToken:
    return VerdictToken(
        id=token.id,
        text=token.text,
        verdict=token.verdict.value,
        entropy=token.entropy,
        choice=None if token.choice == token.id else NamedToken(id=token.choice, text=token.choice_text),
    )
