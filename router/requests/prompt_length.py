"""Refuse a prompt that is too long, by its beginning alone where that is enough. Pure."""

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
        yield too_long(field, f"more than {least} tokens", context_length)


def too_long(field: str, found: str, context_length: int, room: int = 1) -> FieldViolation:
    """Return the violation of a prompt without `room` after it; clients know it by its code or last words."""
    allowed = f"at most {context_length - room} {'leave room for an answer' if room else 'fit'}"
    known = f"this model's maximum context length is {context_length} tokens"
    return FieldViolation(field, f"has {found}, {allowed}; {known}", "context_length_exceeded")


def too_many_characters(field: str, found: str, limit: int) -> FieldViolation:
    """Return the violation of a prompt above `router.limits.prompt_characters`: too long in tokens, too."""
    allowed = f"at most {limit} are allowed (router.limits.prompt_characters)"
    return FieldViolation(field, f"{found}, {allowed}", "context_length_exceeded")
