"""A streamed completion over HTTP, with nothing between it and the socket: so it can hang up anywhere."""

import asyncio
import contextlib
import json
from urllib.parse import urlsplit

from benchmarks.soak.questions import Question
from fly.errors import FlyServeError, InvalidRequest

_REFUSED = range(400, 500)


async def complete(url: str, question: Question, hang_up_after: int | None = None) -> bool:
    """Whether all of the response came.

    Args:
        url: Of the router's HTTP face.
        question: Its prompt, its length, its mode and its options are asked.
        hang_up_after: Events of the stream after which the connection is closed; None reads to the end.

    Raises:
        InvalidRequest: The server rejected it.
        FlyServeError: The stream ended before the response did.
    """
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        writer.write(_request(place.netloc, question))
        await writer.drain()
        await _begin(reader)
        return await _read(reader, hang_up_after)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _request(host: str, question: Question) -> bytes:
    body = json.dumps(
        {
            "model": "target",
            "prompt": list(question.prompt),
            "max_tokens": question.max_new_tokens,
            "temperature": question.sampling.temperature,
            "speculation": {"mode": question.speculation.mode, "preset": question.speculation.preset},
            "stream": True,
            **question.options,
        }
    )
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode()


async def _begin(reader: asyncio.StreamReader) -> None:
    """Reads the status; raises where it is no success."""
    status = int((await reader.readline()).split()[1])
    if status in _REFUSED:
        raise InvalidRequest.of("request", f"is answered by {status}")
    if status != 200:
        raise FlyServeError(f"the server answers by {status}")


async def _read(reader: asyncio.StreamReader, hang_up_after: int | None) -> bool:
    num_events = 0
    while line := await reader.readline():
        if line.startswith(b"data: [DONE]"):
            return True
        num_events += line.startswith(b"data: ")
        if hang_up_after is not None and num_events >= hang_up_after:
            return False
    raise FlyServeError("the stream ended before the response did")
