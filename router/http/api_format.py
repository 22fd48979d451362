"""Interface of the two API formats, completions and chat: bodies to requests, chunks to choices."""

from collections.abc import Mapping
from typing import Any, Protocol

from fly.response import Choice, Chunk, Part
from fly.types import FinishReason as Finish
from router.http.objects import Envelope, FinishReason, ResponseModel
from router.http.request_builder import HttpRequest

_FINISH_REASONS: dict[Finish, FinishReason] = {
    Finish.LENGTH: "length",
    Finish.STOP_TOKEN: "stop",
    Finish.STOP_STRING: "stop",
}


class ApiFormat(Protocol):
    """Completions or chat."""

    @property
    def id_prefix(self) -> str:
        """Prefix of a response's id, before the request's id."""
        ...

    @property
    def response_type(self) -> type[Envelope]:
        """Type of a whole response."""
        ...

    @property
    def response_object(self) -> str:
        """Value of its field `object`."""
        ...

    @property
    def chunk_type(self) -> type[Envelope]:
        """Type of a chunk."""
        ...

    @property
    def chunk_object(self) -> str:
        """Value of its field `object`."""
        ...

    async def parse(self, data: Mapping[str, Any], request_id: str) -> HttpRequest:
        """Return the request of a body.

        Raises:
            FlyServeError: A field is unknown, unsupported, missing or malformed.
        """
        ...

    def choice(self, choice: Choice, extra: Mapping[str, Any]) -> ResponseModel:
        """Return a whole choice, with further fields."""
        ...

    def chunk_choice(self, chunk: Chunk, sent: int | None) -> ResponseModel:
        """Return the part of a choice that a chunk has.

        Args:
            chunk: Its choice index is among all choices of the HTTP request.
            sent: Characters of the choice's tokens in earlier chunks; None for its first chunk.
        """
        ...


def finish_reason(part: Part) -> FinishReason | None:
    """Return OpenAI's name of the finish reason; None while the choice has not ended."""
    return None if part.finish_reason is None else _FINISH_REASONS[part.finish_reason]
