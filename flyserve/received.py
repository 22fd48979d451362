"""A streamed response as it arrives, over as many streams as it takes; without input or output."""

from dataclasses import replace
from enum import Enum

from fly.errors import DeadlineExceeded, FlyServeError
from flyserve.codec import chunk_from_wire
from flyserve.errors import StreamBroken
from flyserve.retries import Tries
from flyserve.types import Choice, Chunk, Response, Statistics
from protos.flyserve.v1 import common_pb2, generation_pb2


class _Phase(Enum):
    """What the next chunk is."""

    BEGINS = 1
    RESUMES = 2
    FOLLOWS = 3


class ReceivedStream:
    """What has come of one request, and with what request the rest is to be had.

    Its caller repeats, until `is_finished`: open a stream with `request`, `take` its chunks; when it breaks,
    wait as `again_after_s` says.

    Attributes:
        request: For the next stream.
        resumed: Times that a further stream went on with what was there.
    """

    def __init__(self, request: generation_pb2.GenerateRequest) -> None:
        self.request = request
        self.resumed = 0
        self._original = request
        self._origin: generation_pb2.Origin | None = None
        self._chunks: list[list[Chunk]] = [[] for _ in range(request.n or 1)]
        self._prompt_tokens = 0
        self._phase = _Phase.BEGINS

    @property
    def is_finished(self) -> bool:
        """Whether the last chunk of every choice is there."""
        return all(chunks and chunks[-1].finish_reason is not None for chunks in self._chunks)

    @property
    def response(self) -> Response:
        """All that has been received; a choice that goes on has no finish reason and empty statistics."""
        warnings = [warning for chunks in self._chunks for chunk in chunks for warning in chunk.warnings]
        return Response(
            request_id=self._original.request_id,
            choices=tuple(_choice(index, chunks) for index, chunks in enumerate(self._chunks)),
            prompt_tokens=self._prompt_tokens,
            warnings=tuple(dict.fromkeys(warnings)),
            resumed=self.resumed,
        )

    def take(self, wire: generation_pb2.GenerateChunk) -> Chunk:
        """The next chunk, as if there had been but one stream.

        Raises:
            StreamBroken: The server does not go on with the response, but has begun another.
        """
        chunk, phase, self._phase = chunk_from_wire(wire), self._phase, _Phase.FOLLOWS
        if phase is _Phase.BEGINS:
            self._origin = wire.origin if wire.HasField("origin") else None
            self._prompt_tokens = chunk.prompt_tokens
        elif phase is _Phase.RESUMES:
            if wire.origin != self._origin:
                raise self._broken("the next server began another response instead of going on with this one")
            self.resumed += 1
            chunk = replace(chunk, request_id="", prompt_tokens=0)
        self._chunks[chunk.choice_index].append(chunk)
        return chunk

    def again_after_s(self, error: FlyServeError, tries: Tries, now: float) -> float:
        """Seconds to wait before another stream is opened with `request`.

        Raises:
            StreamBroken: Something was received, and the rest cannot be had as it would have been.
            FlyServeError: The error itself: nothing was received and no other try is safe, or the deadline
                has passed.
        """
        tries.remaining_s(now)
        if isinstance(error, DeadlineExceeded) or not any(self._chunks):
            return tries.again_after_s(error, now)
        if (obstacle := _obstacle(self._original, self._origin)) is not None:
            raise self._broken(f"{error}; it cannot be resumed: {obstacle}") from error
        try:
            wait_s = tries.again_after_s(error, now)
        except FlyServeError:
            raise self._broken(f"{error}; nobody goes on with it") from error
        self.request = self._resumption()
        self._phase = _Phase.RESUMES
        return wait_s

    def _resumption(self) -> generation_pb2.GenerateRequest:
        """The original request with what has been received of it, and nothing left open."""
        assert self._origin is not None
        request = generation_pb2.GenerateRequest()
        request.CopyFrom(self._original)
        request.max_new_tokens = request.max_new_tokens or self._origin.max_new_tokens
        request.sampling.seed = self._origin.seed
        request.speculation.mode = self._origin.mode
        request.resume.weight_fingerprint = self._origin.weight_fingerprint
        for index, chunks in enumerate(self._chunks):
            if chunks:
                ids = [token.id for chunk in chunks for token in chunk.tokens]
                is_finished = chunks[-1].finish_reason is not None
                request.resume.choices.add(index=index, token_ids=ids, is_finished=is_finished)
        return request

    def _broken(self, why: str) -> StreamBroken:
        response = self.response
        count = sum(len(choice.tokens) for choice in response.choices)
        told = f"the stream of request {response.request_id} broke after {count} tokens"
        return StreamBroken(f"{told}: {why}", response)


def _obstacle(request: generation_pb2.GenerateRequest, origin: generation_pb2.Origin | None) -> str | None:
    """Why the rest of a response might differ from what it would have been; None where it cannot."""
    if origin is None:
        return "the server does not say what the response comes of"
    if origin.mode == generation_pb2.SPECULATION_MODE_FLY:
        return "what mode fly keeps depends on where drafts are cut; modes exact and plain can be resumed"
    is_drafted = origin.mode != generation_pb2.SPECULATION_MODE_PLAIN
    is_coupled = request.sampling.coupling == common_pb2.COUPLING_REJECTION
    if is_drafted and is_coupled and request.sampling.temperature > 0:
        return "what coupling rejection draws depends on the drafts; shared_noise can be resumed"
    return None


def _choice(index: int, chunks: list[Chunk]) -> Choice:
    last = chunks[-1] if chunks else None
    return Choice(
        index=index,
        text="".join(chunk.text for chunk in chunks),
        tokens=tuple(token for chunk in chunks for token in chunk.tokens),
        finish_reason=last.finish_reason if last else None,
        statistics=(last.statistics if last else None) or Statistics(),
        rounds=tuple(played for chunk in chunks for played in chunk.rounds),
    )
