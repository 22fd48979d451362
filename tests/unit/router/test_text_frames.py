"""Streamed chunks: what a client receives is what the objects of the API say, whatever is made only once."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyserve.core.request import GenerateRequest, SamplingParams
from flyserve.core.response import Chunk
from flyserve.core.types import FinishReason
from router.config import LimitsConfig
from router.generation.response import MessageChunk
from router.http.api_format import HttpRequest
from router.http.chat import Chat, ChatRequest
from router.http.completions import CompletionRequest, Completions
from router.http.responder import Responder
from router.tools.parts import CallPart, Parts

TEXTS = st.text(max_size=20)
REQUESTS = (
    (Chat, ChatRequest, {"messages": [{"role": "user", "content": "x"}]}),
    (Completions, CompletionRequest, {"prompt": "x"}),
)


def message(content: str, reasoning: str, arguments: str) -> MessageChunk:
    calls = (CallPart(0, arguments=arguments),) if arguments else ()
    return MessageChunk(text=content, parts=Parts(content=content, reasoning=reasoning, calls=calls))


chunks_st = st.builds(Chunk, text=TEXTS, choice_index=st.integers(0, 2))
messages_st = st.builds(message, TEXTS, TEXTS, st.sampled_from(["", "{}"]))


class Service:
    """Emits some chunks for every request."""

    def __init__(self, chunks: list[Chunk]) -> None:
        self.texts = SimpleNamespace(image=None)
        self._chunks = chunks

    def num_at_once(self, request: GenerateRequest) -> int:
        return 1

    async def serve(
        self, request: GenerateRequest, timeout_s: Any, emit: Any, *others: Any, **more: Any
    ) -> None:
        for chunk in self._chunks:
            await emit(chunk)


async def streamed(chunks: list[Chunk], kind: int, request_id: str, usage: bool) -> tuple[list[bytes], Any]:
    """Return the events of a stream, and the API format that made them."""
    make_format, make_body, fields = REQUESTS[kind]
    service: Any = Service(chunks)
    form = make_format(service, SamplingParams(), LimitsConfig())
    options = {"stream_options": {"include_usage": usage}}
    body = make_body.model_validate(
        {"model": "m", "stream": True, **options, **fields}, context=LimitsConfig()
    )
    request = HttpRequest(body, (GenerateRequest(prompt="x", request_id="r"),), {})
    sent = list[bytes]()

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    respond = Responder(service, form, request, request_id, timeout_s=None, traceparent="")
    await respond({"type": "http"}, asyncio.Event().wait, send)  # type: ignore[arg-type]
    return b"".join(sent).removesuffix(b"\n\n").split(b"\n\n"), form


@pytest.mark.parametrize("kind", range(len(REQUESTS)))
@given(
    chunks=st.lists(chunks_st, min_size=1, max_size=6) | st.lists(messages_st, min_size=1, max_size=6),
    ends=st.booleans(),
    request_id=TEXTS,
    usage=st.booleans(),
)
def test_every_chunk_is_the_json_of_its_object(
    kind: int, chunks: list[Chunk], ends: bool, request_id: str, usage: bool
) -> None:
    if ends:
        chunks = [*chunks, Chunk(text="", finish_reason=FinishReason.LENGTH)]
    events, form = asyncio.run(streamed(chunks, kind, request_id, usage))
    assert events.pop() == b"data: [DONE]"
    if usage:
        assert b'"total_tokens"' in events.pop()
    begun = set[int]()
    make, name = form.chunk
    for chunk, event in zip(chunks, events, strict=True):
        index, parts = chunk.choice_index, getattr(chunk, "parts", None)
        choice = form.chunk_choice(chunk, 0 if index in begun else None, parts)
        begun.add(index)
        head = {"id": f"{form.id_prefix}{request_id}", "model": "m", "object": name, "choices": [choice]}
        # The time of its creation differs; nothing else may.
        created = int(event.partition(b'"created":')[2].partition(b",")[0])
        extra = {"usage": None} if usage else {}
        assert json.loads(event.removeprefix(b"data: ")) == json.loads(
            make(created=created, **head, **extra).to_json()
        )
        assert len(event.decode().splitlines()) == 1, "no client cuts an event"
