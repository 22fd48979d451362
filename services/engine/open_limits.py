"""Check the message that opens a sequence; no later step can correct it."""

from collections.abc import Iterator

from fly.errors import FieldViolation, InvalidRequest
from fly.limits import MOST_LOGPROBS, check_sampling
from fly.messages import Open


def check_open(opening: Open, vocab_size: int, context_length: int, limited_by: str = "the model") -> None:
    """Raise `InvalidRequest` with a violation for every field that breaks a limit.

    Args:
        opening: Message to check.
        vocab_size: Exclusive upper limit of token ids.
        context_length: Longest sequence in tokens.
        limited_by: Name of the resource that sets this limit, for the error message.
    """
    violations = [
        *_check_fields(opening, context_length, limited_by),
        *check_sampling(opening.sampling, vocab_size),
    ]
    if violations:
        raise InvalidRequest(*violations)


def _check_fields(opening: Open, context_length: int, limited_by: str) -> Iterator[FieldViolation]:
    length = opening.prompt_length
    if not 0 <= length <= context_length:
        allowed = f"0 to {context_length} (limited by {limited_by})"
        yield FieldViolation("prompt_length", f"is {length}, must be {allowed}")
    asked = opening.num_logprobs
    if asked is not None and not 0 <= asked <= MOST_LOGPROBS:
        yield FieldViolation("num_logprobs", f"is {asked}, must be 0 to {MOST_LOGPROBS}")
