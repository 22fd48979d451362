"""A streamed completion over HTTP directly on a socket, so that it can be cut off anywhere."""

import asyncio
import contextlib
import json
from urllib.parse import urlsplit

from benchmarks.scenarios.soak.requests import Request
from fly.errors import FlyServeError, InvalidRequest


async def complete(url: str, request: Request, close_after: int | None = None) -> bool:
    """Send a request; return True if the whole response arrived.

    Args:
        url: URL of the router's HTTP API.
        request: Its prompt, length, mode and options are sent.
        close_after: Events of the stream after which the connection is closed; None reads to the end.

    Raises:
        InvalidRequest: The server rejected it.
        FlyServeError: The stream ended before the response did.
    """
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        writer.write(_encode(place.netloc, request))
        await writer.drain()
        await _read_status(reader)
        return await _read_events(reader, close_after)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _encode(host: str, request: Request) -> bytes:
    body = json.dumps(
        {
            "model": "target",
            "prompt": list(request.prompt),
            "max_tokens": request.max_new_tokens,
            "temperature": request.sampling.temperature,
            "speculation": {"mode": request.speculation.mode, "preset": request.speculation.preset},
            "stream": True,
            **request.options,
        }
    )
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode()


async def _read_status(reader: asyncio.StreamReader) -> None:
    status = int((await reader.readline()).split()[1])
    if 400 <= status < 500:
        raise InvalidRequest.of("request", f"was answered with status {status}")
    if status != 200:
        raise FlyServeError(f"the server answered with status {status}")


async def _read_events(reader: asyncio.StreamReader, close_after: int | None) -> bool:
    num_events = 0
    while line := await reader.readline():
        if line.startswith(b"data: [DONE]"):
            return True
        num_events += line.startswith(b"data: ")
        if close_after is not None and num_events >= close_after:
            return False
    raise FlyServeError("the stream ended before the response did")
