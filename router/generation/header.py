"""Header of a response: everything about it that precedes its first token."""

from typing import NamedTuple

from fly.response import Origin


class Header(NamedTuple):
    """Fields of a response's first chunk, by their names there."""

    request_id: str
    prompt_tokens: int
    origin: Origin
