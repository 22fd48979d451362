"""Parse the JSON of a body: its values are counted before they are made, and a large one is off the loop."""

from typing import Any, NamedTuple

import pydantic_core

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


async def parse_json(body: bytes, most_values: int) -> JsonBody:
    """Return the object in a body; raise Rejected if it is none, or has too many values."""
    cost_s = cpu_s(characters=len(body), items=body.count(b"{"))
    return JsonBody(await off_loop(cost_s, lambda: _parse(body, most_values)), cost_s)


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
        raise Rejected(400, f"the body is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise Rejected(400, f"the body must be a JSON object, found {_KINDS.get(type(data), 'null')}")
    return data


def num_values(body: bytes, enough: int) -> int:
    """Return the values in JSON, weighted; a lower bound if its texts alone are more than `enough`."""
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    texts = plain.count(b'"') // 2 * _WEIGHT
    if texts > enough:
        return texts
    outside = b"".join(plain.split(b'"')[::2])
    return texts + outside.count(b",") + (outside.count(b"[") + outside.count(b"{")) * _WEIGHT


_KINDS = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
