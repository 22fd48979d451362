"""Read a request's body: check type, size and encoding, and parse its JSON object."""

import asyncio
from typing import Any

import pydantic_core
from starlette.requests import Request

from router.config import HttpConfig
from router.http.errors import Rejected


async def read_object(request: Request, limits: HttpConfig) -> dict[str, Any]:
    """Return the JSON object of a request.

    Raises:
        Rejected: The body has another type, is too long or too slow, or is not a JSON object in UTF-8.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        found = f"is {kind!r}" if kind else "is missing"
        raise Rejected(415, f"Content-Type {found}, must be application/json", "Content-Type")
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            body = await _read(request, limits.max_body_bytes)
    except TimeoutError:
        raise Rejected(408, f"the body did not arrive within {limits.body_timeout_s:g} s") from None
    return _parse(body)


async def _read(request: Request, limit: int) -> bytes:
    """Return the body; keep at most `limit` bytes."""
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limit:
        raise _too_long(limit)
    body = bytearray()
    async for part in request.stream():
        if len(body) + len(part) > limit:
            raise _too_long(limit)
        body += part
    return bytes(body)


def _too_long(limit: int) -> Rejected:
    return Rejected(413, f"the body has more than {limit} bytes")


def _parse(body: bytes) -> dict[str, Any]:
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Rejected(400, f"the body is not UTF-8: byte {error.start} is invalid") from None
    try:
        data = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Rejected(400, f"the body is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise Rejected(400, f"the body must be a JSON object, found {_KINDS.get(type(data), 'null')}")
    return data


_KINDS = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
