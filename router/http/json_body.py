"""Read the body of a request, a JSON object, within limits of its type, length, time and values.

The values are counted before they are made, and a large body is parsed off the event loop.
"""

import asyncio
import re
from typing import Any, NamedTuple

import pydantic_core
from starlette.datastructures import Headers
from starlette.requests import Request

from flyserve.core.errors import quoted
from router.config import HttpConfig
from router.cost import cpu_s, off_loop
from router.http.errors import Rejected

_WEIGHT = 4
"""Numbers that cost as much as a text, a name, a list or an object."""


class JsonBody(NamedTuple):
    """A parsed body.

    Attributes:
        fields: Its fields.
        cost_s: Estimated CPU seconds of the work that it causes until its prompt is known.
    """

    fields: dict[str, Any]
    cost_s: float


async def read_object(request: Request, limits: HttpConfig) -> JsonBody:
    """Return the JSON object of a request.

    Raise Rejected if the body has another type, is compressed, too long or too slow, or is not a JSON object
    in UTF-8.
    """
    _require_json(request.headers)
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            body = await _read(request, limits.max_body_bytes)
    except TimeoutError:
        raise Rejected(408, f"the body did not arrive within {limits.body_timeout_s:g} s") from None
    cost_s = cpu_s(characters=len(body), items=body.count(b"{"))
    return JsonBody(await off_loop(cost_s, lambda: _parse(body, limits.max_body_values)), cost_s)


def _require_json(headers: Headers) -> None:
    kinds = [kind.partition(";")[0].strip().lower() for kind in headers.getlist("content-type")]
    if kinds != ["application/json"]:
        found = f"is {quoted(', '.join(kinds))}" if any(kinds) else "is missing"
        raise Rejected(415, f"Content-Type {found}, must be application/json", "Content-Type")
    encoding = ", ".join(headers.getlist("content-encoding")).lower()
    if {part.strip() for part in encoding.split(",")} - {"", "identity"}:
        found = f"Content-Encoding is {quoted(encoding)}: send the body as it is, not compressed"
        raise Rejected(415, found, "Content-Encoding", headers={"Accept-Encoding": "identity"})


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


def _parse(body: bytes, most_values: int) -> dict[str, Any]:
    if len(body) * _WEIGHT > most_values and (number := num_values(body, most_values)) > most_values:
        found = f"the body has {number} values or more, at most {most_values} are allowed"
        raise Rejected(413, f"{found} (router.http.max_body_values)")
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Rejected(400, f"the body is not UTF-8: byte {error.start} is invalid") from None
    try:
        data = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Rejected(400, f"the body is not JSON: it is invalid{_place(error)}") from None
    if not isinstance(data, dict):
        raise Rejected(400, f"the body must be a JSON object, found {_KINDS.get(type(data), 'null')}")
    return data


def _place(error: ValueError) -> str:
    """Return the place that a fault of the parser names."""
    found = re.search(r" at line \d+ column \d+", str(error))
    return found[0] if found else ""


def num_values(body: bytes, enough: int) -> int:
    """Return the values in JSON, weighted; a lower bound if its texts alone are more than `enough`."""
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    texts = plain.count(b'"') // 2 * _WEIGHT
    if texts > enough:
        return texts
    outside = b"".join(plain.split(b'"')[::2])
    return texts + outside.count(b",") + (outside.count(b"[") + outside.count(b"{")) * _WEIGHT


_KINDS = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
