"""Requests that vLLM cannot serve exactly are refused by the name of their field; pure."""

from collections.abc import Iterator

from fly.errors import FieldViolation, refuse
from fly.messages import Open
from fly.request import SamplingParams
from fly.types import EntropyEstimator

_NEUTRAL = SamplingParams()
_PROCESSORS = (
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "min_tokens",
)


def check_exact(opening: Open, max_logprobs: int) -> None:
    """Raise `InvalidRequest` unless the `max_logprobs` most likely tokens give the exact answer."""
    refuse(_violations(opening, max_logprobs))


def _violations(opening: Open, max_logprobs: int) -> Iterator[FieldViolation]:
    sampling = opening.sampling
    if opening.grammar:
        yield FieldViolation("grammar", "is set, but engine vllm scores drafts without it: leave it out")
    if opening.entropy is EntropyEstimator.NORMALIZED and not opening.without_entropies:
        yield FieldViolation("entropy", "is normalized, an engine of vLLM computes top_k only")
    if (asked := opening.num_logprobs or 0) > max_logprobs:
        yield FieldViolation(
            "num_logprobs", f"is {asked}, must be 0 to {max_logprobs} (max_logprobs of vLLM)"
        )
    if sampling.temperature > 0 and not 1 <= sampling.top_k <= max_logprobs:
        allowed = f"1 to {max_logprobs} (max_logprobs of vLLM) with a temperature above 0"
        yield FieldViolation("sampling.top_k", f"is {sampling.top_k}, must be {allowed}")
    for name in _PROCESSORS:
        if (value := getattr(sampling, name)) != (neutral := getattr(_NEUTRAL, name)):
            allowed = f"must be {neutral or 'absent' if name == 'logit_bias' else neutral}"
            shown = f"{len(value)} tokens" if name == "logit_bias" else value
            yield FieldViolation(f"sampling.{name}", f"is {shown}, {allowed}: vLLM scores tokens without it")
