"""The range of every sampling parameter."""

import math
from collections.abc import Iterator

from fly.errors import FieldViolation
from fly.types import SamplingParams
from router.config import LimitsConfig

_ADDED_PENALTY = 2.0
_LOGIT_BIAS = 100.0


def check_sampling(
    sampling: SamplingParams, vocab_size: int, limits: LimitsConfig
) -> Iterator[FieldViolation]:
    """A violation for every parameter out of its range."""
    yield from _check_temperature(sampling.temperature)
    yield from _check_filters(sampling, vocab_size)
    yield from _check_penalties(sampling)
    yield from _check_token_lists(sampling, vocab_size, limits)


def _check_temperature(temperature: float) -> Iterator[FieldViolation]:
    if not (math.isfinite(temperature) and temperature >= 0):
        yield FieldViolation("sampling.temperature", f"is {temperature}, must be finite and at least 0")


def _check_filters(sampling: SamplingParams, vocab_size: int) -> Iterator[FieldViolation]:
    if sampling.top_k > vocab_size:
        yield FieldViolation("sampling.top_k", f"is {sampling.top_k}, must be 0 to {vocab_size}")
    if not 0 < sampling.top_p <= 1:
        yield FieldViolation("sampling.top_p", f"is {sampling.top_p}, must be above 0 and at most 1")
    if not 0 <= sampling.min_p <= 1:
        yield FieldViolation("sampling.min_p", f"is {sampling.min_p}, must be 0 to 1")


def _check_penalties(sampling: SamplingParams) -> Iterator[FieldViolation]:
    repetition = sampling.repetition_penalty
    if not (math.isfinite(repetition) and repetition > 0):
        yield FieldViolation("sampling.repetition_penalty", f"is {repetition}, must be finite and above 0")
    for name in ("presence_penalty", "frequency_penalty"):
        penalty = getattr(sampling, name)
        if not -_ADDED_PENALTY <= penalty <= _ADDED_PENALTY:
            allowed = f"must be {-_ADDED_PENALTY} to {_ADDED_PENALTY}"
            yield FieldViolation(f"sampling.{name}", f"is {penalty}, {allowed}")


def _check_token_lists(
    sampling: SamplingParams, vocab_size: int, limits: LimitsConfig
) -> Iterator[FieldViolation]:
    allowed = f"must be 0 to {vocab_size - 1}"
    for name in ("stop_token_ids", "logit_bias"):
        if (length := len(getattr(sampling, name))) > limits.listed_tokens:
            yield FieldViolation(f"sampling.{name}", f"has {length} tokens, at most {limits.listed_tokens}")
    for index, token in enumerate(sampling.stop_token_ids):
        if token >= vocab_size:
            yield FieldViolation(f"sampling.stop_token_ids[{index}]", f"is {token}, {allowed}")
    for token, bias in sampling.logit_bias:
        if token >= vocab_size:
            yield FieldViolation("sampling.logit_bias", f"names token {token}, {allowed}")
        if not -_LOGIT_BIAS <= bias <= _LOGIT_BIAS:
            found = f"is {bias} for token {token}"
            yield FieldViolation("sampling.logit_bias", f"{found}, must be {-_LOGIT_BIAS} to {_LOGIT_BIAS}")
