"""The two ways to answer an order: whole, or as a stream of server-sent events."""

import json
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from router.generation.response import Piece
from router.http.dialect import Dialect, Order
from router.http.errors import reply_to
from router.http.extension import extension
from router.http.objects import Envelope
from router.http.running import Tally, run_order, while_connected
from router.service import GenerationService

_DONE = b"[DONE]"
_EVENT_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    # Proxies that gather what they pass on would hold tokens back.
    (b"x-accel-buffering", b"no"),
]


class Answer:
    """One order on its way to its client."""

    def __init__(self, service: GenerationService, dialect: Dialect, order: Order, request_id: str) -> None:
        self._service = service
        self._dialect = dialect
        self._order = order
        self._tally = Tally()
        self._head = {
            "id": f"{dialect.id_prefix}{request_id}",
            "created": int(time.time()),
            "model": order.model,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Generates and sends; all work ends with this call, and at once when the client leaves.

        Raises:
            FlyServeError: Nothing has been sent yet, and nothing can be.
        """
        work = self._stream(send) if self._order.stream else self._whole(scope, receive, send)
        await while_connected(receive, work)

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        pieces: defaultdict[int, list[Piece]] = defaultdict(list)

        async def collect(index: int, piece: Piece) -> None:
            pieces[index].append(piece)

        await run_order(self._service, self._order, self._tally, collect)
        choices = [
            self._dialect.choice(index, pieces[index], self._extra(pieces[index])) for index in sorted(pieces)
        ]
        dialect = self._dialect
        whole = self._envelope(
            dialect.response_type, dialect.response_object, choices, usage=self._tally.usage
        )
        await Response(whole.to_json(), media_type="application/json")(scope, receive, send)

    async def _stream(self, send: Send) -> None:
        events, sent = _Events(send), dict[int, int]()

        async def emit(index: int, piece: Piece) -> None:
            await events.send(self._chunk(index, piece, sent.get(index)).to_json())
            sent[index] = sent.get(index, 0) + sum(len(token.text) for token in piece.tokens)

        try:
            await run_order(self._service, self._order, self._tally, emit)
            if self._order.include_usage:
                await events.send(self._closing_chunk().to_json())
        except Exception as error:
            if not events.have_begun:
                raise
            await events.send(json.dumps(reply_to(error).content).encode())
        await events.end()

    def _chunk(self, index: int, piece: Piece, sent: int | None) -> Envelope:
        extra: dict[str, Any] = self._extra([piece])
        if self._order.include_usage:
            extra["usage"] = self._tally.usage if self._order.continuous_usage else None
        choice = self._dialect.chunk_choice(index, piece, sent)
        return self._envelope(self._dialect.chunk_type, self._dialect.chunk_object, [choice], **extra)

    def _closing_chunk(self) -> Envelope:
        return self._envelope(
            self._dialect.chunk_type, self._dialect.chunk_object, [], usage=self._tally.usage
        )

    def _envelope(self, kind: type[Envelope], name: str, choices: Sequence[Any], **extra: Any) -> Envelope:
        return kind(**self._head, object=name, choices=list(choices), **extra)

    def _extra(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        return {"flyserve": extension(pieces)} if self._order.verdicts else {}


class _Events:
    """Server-sent events; the response begins with the first.

    Attributes:
        have_begun: So an error can no longer be told by a status.
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
