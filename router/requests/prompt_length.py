"""Refuse a text that is far too long for the model by its beginning, before all of it is tokenized. Pure."""

from collections.abc import Callable, Iterator, Sequence

from flyserve.core.errors import FieldViolation

_CHARACTERS_PER_TOKEN = 8
"""About twice as many as usual: a text that fits has fewer, nearly always."""
_SLACK = 64
"""Tokens that the cut at the end of the beginning may add."""


def check_beginning(
    field: str, texts: Sequence[str], encode: Callable[[str], Sequence[int]], context_length: int
) -> Iterator[FieldViolation]:
    """Yield a violation if the beginning of texts alone does not fit; texts of a usual length cost nothing.

    A `context_length` of 0 has no limit.
    """
    most = context_length * _CHARACTERS_PER_TOKEN
    if not context_length or sum(map(len, texts)) <= most:
        return
    least = len(encode("".join(texts)[:most])) - _SLACK
    if least > context_length:
        found = f"has more than {least} tokens, at most {context_length - 1} leave room for an answer"
        yield FieldViolation(field, found, "context_length_exceeded")
