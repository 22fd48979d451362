"""A streamed response as it arrives, over one or several streams; without input or output."""

from collections import defaultdict
from dataclasses import replace

from flyserve.core.errors import DeadlineExceeded, FlyServeError, InternalError
from flyserve.core.request import GenerateRequest, ReceivedChoice, Resumption
from flyserve.core.response import Chunk, Origin, Response, join_chunks
from flyserve.core.types import Coupling, Mode
from flyserve.retries import RetryPolicy
from flyserve.v1 import generation_pb2
from flyserve.wire.generation import chunk_from_wire, request_to_wire


class StreamBroken(FlyServeError):
    """A stream broke in mid-response, and the rest cannot be resumed exactly.

    Attributes:
        received: Received part of the response; a choice that was cut short has no finish reason.
    """

    def __init__(self, message: str, received: Response) -> None:
        self.received = received
        super().__init__(message, received)

    def __str__(self) -> str:
        return str(self.args[0])


class ReceivedStream:
    """Received part of one response, and the request for the rest.

    Its caller repeats, until `is_finished`: open a stream with `request` and `take` its chunks; when it
    breaks, wait for `next_delay_s`.

    Attributes:
        request: For the next stream.
        resumed: Number of streams that continued the response.
    """

    def __init__(self, request: GenerateRequest) -> None:
        """Begin a response; raises InvalidRequest for a value that the wire cannot carry."""
        self.request = request_to_wire(request)
        self.resumed = 0
        self._original = request
        self._origin: Origin | None = None
        self._chunks: defaultdict[int, list[Chunk]] = defaultdict(list)
        self._prompt_tokens = 0
        self._resumes = False

    @property
    def is_finished(self) -> bool:
        """True once the last chunk of every choice has arrived."""
        ended = sum(chunks[-1].finish_reason is not None for chunks in self._chunks.values())
        return 0 < ended == self._original.n

    @property
    def response(self) -> Response:
        """Everything received so far; an unfinished choice has no finish reason and empty statistics."""
        received = [self._chunks.get(index, []) for index in range(self._original.n)]
        warnings = [warning for chunks in received for chunk in chunks for warning in chunk.warnings]
        return Response(
            request_id=self._original.request_id,
            choices=tuple(join_chunks(index, chunks) for index, chunks in enumerate(received)),
            prompt_tokens=self._prompt_tokens,
            warnings=tuple(dict.fromkeys(warnings)),
            prompt=tuple(token for chunks in received[:1] for chunk in chunks for token in chunk.prompt),
            resumed=self.resumed,
        )

    def take(self, wire: generation_pb2.GenerateChunk) -> Chunk:
        """Add the next chunk, and return it as if there had been only one stream.

        Raises:
            StreamBroken: The server did not resume the response, but began another one.
            InternalError: The chunk is that of a choice that was not requested.
        """
        chunk = chunk_from_wire(wire)
        if chunk.choice_index >= self._original.n:
            found = f"choice_index is {chunk.choice_index}, must be below n, which is {self._original.n}"
            raise InternalError(f"the server's answer does not fit the request: {found}")
        if not self._chunks:
            self._origin, self._prompt_tokens = chunk.origin, chunk.prompt_tokens
        elif self._resumes:
            self._resumes = False
            if chunk.origin != self._origin:
                raise self._broken("the next server began another response instead of resuming this one")
            self.resumed += 1
            chunk = replace(chunk, request_id="", prompt_tokens=0, origin=None)
        self._chunks[chunk.choice_index].append(chunk)
        return chunk

    def next_delay_s(self, error: FlyServeError, policy: RetryPolicy, now: float) -> float:
        """Return the seconds to wait before another stream is opened with `request`.

        Raises:
            StreamBroken: A part was received, and the rest cannot be resumed exactly.
            FlyServeError: The error itself: nothing was received and a retry is not safe, or the deadline has
                passed.
        """
        policy.remaining_s(now)
        if isinstance(error, DeadlineExceeded) or not self._chunks:
            return policy.next_delay_s(error, now)
        if (obstacle := _obstacle(self._original, self._origin)) is not None:
            raise self._broken(f"{error}; it cannot be resumed: {obstacle}") from None
        try:
            delay_s = policy.next_delay_s(error, now)
        except FlyServeError:
            raise self._broken(f"{error}; no server resumed it") from None
        self.request = request_to_wire(self._resumption())
        self._resumes = True
        return delay_s

    def _resumption(self) -> GenerateRequest:
        """Return the original request with the received part, and with nothing left open."""
        assert self._origin is not None
        original, origin = self._original, self._origin
        received = tuple(
            ReceivedChoice(
                index=index,
                token_ids=tuple(token.id for chunk in chunks for token in chunk.tokens),
                is_finished=chunks[-1].finish_reason is not None,
                kernels=next((chunk.kernels for chunk in reversed(chunks) if chunk.kernels), ""),
            )
            for index, chunks in sorted(self._chunks.items())
        )
        return replace(
            original,
            max_new_tokens=original.max_new_tokens or origin.max_new_tokens,
            sampling=replace(original.sampling, seed=origin.seed),
            speculation=replace(original.speculation, mode=origin.mode),
            resume=Resumption(received, origin.weight_fingerprint),
        )

    def _broken(self, why: str) -> StreamBroken:
        response = self.response
        count = sum(len(choice.tokens) for choice in response.choices)
        found = f"the stream of request {response.request_id} broke after {count} tokens"
        return StreamBroken(f"{found}: {why}", response)


def _obstacle(request: GenerateRequest, origin: Origin | None) -> str | None:
    """Return the reason why the rest of a response might differ; None if it cannot."""
    if origin is None:
        return "the server did not send the origin of the response"
    if origin.mode is Mode.FLY:
        return "mode fly accepts tokens depending on where drafts end; modes exact and plain can be resumed"
    sampling = request.sampling
    is_coupled = sampling.coupling is Coupling.REJECTION and sampling.temperature > 0
    if origin.mode is Mode.EXACT and is_coupled:
        return "the tokens that coupling rejection draws depend on the drafts; shared_noise can be resumed"
    return None
