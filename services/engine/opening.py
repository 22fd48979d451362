"""The limits of what a sequence is opened with: what no later step could mend."""

import math
from collections.abc import Iterator

from fly.errors import FieldViolation, InvalidRequest
from fly.messages import Open
from fly.types import SamplingParams

MOST_LOGPROBS = 20
_SEED_LIMIT = 1 << 64


def check_opening(opening: Open, vocab_size: int, context_length: int, holder: str = "the context") -> None:
    """Raises `InvalidRequest` with a violation for every field that breaks a limit.

    Args:
        opening: What to check.
        vocab_size: Token ids lie below this.
        context_length: Longest sequence in tokens.
        holder: What sets that limit.
    """
    violations = [
        *_check_open(opening, context_length, holder),
        *_check_sampling(opening.sampling, vocab_size),
    ]
    if violations:
        raise InvalidRequest(*violations)


def _check_open(opening: Open, context_length: int, holder: str) -> Iterator[FieldViolation]:
    length = opening.prompt_length
    if not 0 <= length <= context_length:
        allowed = f"0 to {context_length}, what {holder} holds"
        yield FieldViolation("prompt_length", f"is {length}, must be {allowed}")
    asked = opening.num_logprobs
    if asked is not None and not 0 <= asked <= MOST_LOGPROBS:
        yield FieldViolation("num_logprobs", f"is {asked}, must be 0 to {MOST_LOGPROBS}")


def _check_sampling(sampling: SamplingParams, vocab_size: int) -> Iterator[FieldViolation]:
    """NaN lies in no range."""
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
