"""Check the parameters that a sequence is opened with; no later step can correct them."""

import math
from collections.abc import Iterator

from fly.errors import FieldViolation, InvalidRequest
from fly.messages import Open
from fly.types import SamplingParams

MOST_LOGPROBS = 20
_SEED_LIMIT = 1 << 64


def check_open(opening: Open, vocab_size: int, context_length: int, limited_by: str = "the model") -> None:
    """Raise `InvalidRequest` with a violation for every field that breaks a limit.

    Args:
        opening: The parameters.
        vocab_size: Token ids must be below this.
        context_length: Longest sequence in tokens.
        limited_by: Name of the resource that sets this limit, for the error message.
    """
    violations = [
        *_check_fields(opening, context_length, limited_by),
        *_check_sampling(opening.sampling, vocab_size),
    ]
    if violations:
        raise InvalidRequest(*violations)


def _check_fields(opening: Open, context_length: int, limited_by: str) -> Iterator[FieldViolation]:
    length = opening.prompt_length
    if not 0 <= length <= context_length:
        allowed = f"0 to {context_length} (limited by {limited_by})"
        yield FieldViolation("prompt_length", f"is {length}, must be {allowed}")
    count = opening.num_logprobs
    if count is not None and not 0 <= count <= MOST_LOGPROBS:
        yield FieldViolation("num_logprobs", f"is {count}, must be 0 to {MOST_LOGPROBS}")


def _check_sampling(sampling: SamplingParams, vocab_size: int) -> Iterator[FieldViolation]:
    """Yield a violation for every sampling parameter out of range; NaN is in no range."""
    finite, unit = math.nextafter(math.inf, 0.0), "0 to 1"
    ranges = {
        "temperature": (0.0, finite, "finite and at least 0"),
        "top_k": (0, math.inf, "at least 0"),
        "top_p": (math.ulp(0.0), 1.0, "above 0 and at most 1"),
        "min_p": (0.0, 1.0, unit),
        "repetition_penalty": (math.ulp(0.0), finite, "finite and above 0"),
        "presence_penalty": (-finite, finite, "finite"),
        "frequency_penalty": (-finite, finite, "finite"),
        "min_tokens": (0, math.inf, "at least 0"),
        "seed": (0, _SEED_LIMIT - 1, "0 to 2^64 - 1"),
    }
    for name, (least, most, allowed) in ranges.items():
        value = getattr(sampling, name)
        if not least <= value <= most:
            yield FieldViolation(f"sampling.{name}", f"is {value}, must be {allowed}")
    yield from _check_tokens(sampling, vocab_size)


def _check_tokens(sampling: SamplingParams, vocab_size: int) -> Iterator[FieldViolation]:
    listed = {
        "stop_token_ids": sampling.stop_token_ids,
        "logit_bias": [pair[0] for pair in sampling.logit_bias],
    }
    for name, tokens in listed.items():
        for token in tokens:
            if not 0 <= token < vocab_size:
                yield FieldViolation(f"sampling.{name}", f"has {token}, must be 0 to {vocab_size - 1}")
    for token, bias in sampling.logit_bias:
        if math.isnan(bias) or bias == math.inf:
            yield FieldViolation(
                "sampling.logit_bias", f"is {bias} for token {token}, must be below infinity"
            )
