"""Raw bytes to an HTTP server, and what comes back."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeAlias

LIMIT_S = 240.0
"""Ends a test that hangs."""
Wire: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]

LAST = b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
"""A request after which the server ends the connection: it shows that the server took it as one."""


@asynccontextmanager
async def connected_to(url: str) -> AsyncIterator[Wire]:
    """Open a connection."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()


async def sent(url: str, data: bytes) -> bytes:
    """Send bytes on a new connection; return everything that came until the server ended it."""
    async with connected_to(url) as (reader, writer):
        writer.write(data)
        return await until_closed(reader)


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """Return everything that comes until the server ends the connection."""
    found = b""
    async with asyncio.timeout(LIMIT_S):
        try:
            while part := await reader.read(65536):
                found += part
        except ConnectionError:
            pass
    return found


def statuses(data: bytes) -> list[int]:
    """Return the statuses of all responses."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", data)]


def request(line: str, *headers: str, body: bytes = b"", host: str | None = "localhost") -> bytes:
    """Return a request; with a body, but without its length."""
    named = () if host is None else (f"Host: {host}",)
    return "\r\n".join((line, *named, *headers, "", "")).encode() + body


def post(path: str, *headers: str, body: bytes = b"{}", host: str | None = "localhost") -> bytes:
    """Return a request with a JSON body of known length."""
    length = f"Content-Length: {len(body)}"
    line = f"POST {path} HTTP/1.1"
    return request(line, "Content-Type: application/json", length, *headers, body=body, host=host)
