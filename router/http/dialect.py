"""What tells completions from chat: how a body becomes requests, and how pieces become choices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fly.types import FinishReason as Finish
from router.generation.response import Piece
from router.http.objects import Envelope, FinishReason, ResponseModel
from router.requests.request import GenerateRequest

_FINISH_REASONS: dict[Finish, FinishReason] = {
    Finish.LENGTH: "length",
    Finish.STOP_TOKEN: "stop",
    Finish.STOP_STRING: "stop",
}


@dataclass(frozen=True, slots=True)
class Order:
    """What one HTTP request asks for.

    Attributes:
        model: As the client names it.
        requests: One per prompt, with equally many choices.
        names: What the body calls the fields of a request, by their names there.
        stream: Answer with a stream of chunks.
        include_usage: The stream's last chunk tells the usage.
        continuous_usage: Each of its chunks tells the usage so far.
        verdicts: Tell how every token came to be.
        timeout_s: After which nobody wants the response any more; None is never.
        traceparent: Of the client's trace (W3C), where it has one.
    """

    model: str
    requests: tuple[GenerateRequest, ...]
    names: Mapping[str, str]
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    verdicts: bool = False
    timeout_s: float | None = None
    traceparent: str = ""

    @property
    def num_choices(self) -> int:
        """Of all prompts together."""
        return sum(request.n for request in self.requests)


class Dialect(Protocol):
    """Completions or chat."""

    @property
    def id_prefix(self) -> str:
        """Of a response's id, before the request's."""
        ...

    @property
    def response_type(self) -> type[Envelope]:
        """Of a whole response."""
        ...

    @property
    def response_object(self) -> str:
        """What its `object` says."""
        ...

    @property
    def chunk_type(self) -> type[Envelope]:
        """Of a chunk."""
        ...

    @property
    def chunk_object(self) -> str:
        """What its `object` says."""
        ...

    async def order(self, data: Mapping[str, Any], request_id: str) -> Order:
        """What a body asks for.

        Raises:
            FlyServeError: It asks for something that there is not, or for nothing.
        """
        ...

    def choice(self, index: int, pieces: Sequence[Piece], extra: Mapping[str, Any]) -> ResponseModel:
        """A whole choice.

        Args:
            index: Among all choices of the HTTP request.
            pieces: All of it.
            extra: Further fields.
        """
        ...

    def chunk_choice(self, index: int, piece: Piece, sent: int | None) -> ResponseModel:
        """A piece of a choice.

        Args:
            index: Among all choices of the HTTP request.
            piece: What is new.
            sent: Characters of its tokens before; None for the first piece.
        """
        ...


def text_of(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def finish_reason(piece: Piece) -> FinishReason | None:
    """None while the choice goes on."""
    return None if piece.ending is None else _FINISH_REASONS[piece.ending.finish_reason]
