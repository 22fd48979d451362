"""Ranges of request fields and of internal messages, checked by the router and by the services. Pure."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flyserve.core.errors import FieldViolation
from flyserve.core.request import SamplingParams
from flyserve.core.types import SparseDistribution

MOST_LOGPROBS = 20
"""Most likely tokens whose log-probabilities a service returns per position."""
MOST_PROPOSED = 64
"""Tokens that a drafter draws from under coupling `rejection`."""
MOST_PRIORITY = 2**31 - 1
"""Largest priority; its negative is the smallest, so that the sign of a priority can be changed."""
MOST_TIMEOUT_S = 86_400.0
"""Longest time limit that a request may set: one day."""
PUBLIC_PENALTY = 2.0
"""Largest presence or frequency penalty of a public request, as in OpenAI's API."""
PUBLIC_LOGIT_BIAS = 100.0
"""Largest logit bias of a public request, as in OpenAI's API."""

_TOLERANCE = 1e-3
_FINITE = math.nextafter(math.inf, 0.0)
_MOST_PENALTY = 1e30
"""Largest penalty: with it, and with its inverse as a factor, all logits stay finite in float32."""
_LARGEST_SEED = 2**64 - 1


@dataclass(frozen=True, slots=True)
class SamplingLimits:
    """Limits that a caller of `check_sampling` may tighten.

    Attributes:
        least_top_p: Smallest top_p.
        penalty: Largest absolute presence and frequency penalty.
        logit_bias: Largest absolute bias; if it is infinite, a bias may be -inf, which excludes the token.
    """

    least_top_p: float = math.ulp(0.0)
    penalty: float = _MOST_PENALTY
    logit_bias: float = math.inf


def check_sampling(
    sampling: SamplingParams, vocab_size: int, limits: SamplingLimits = SamplingLimits()
) -> Iterator[FieldViolation]:
    """Yield a violation for every sampling parameter outside its range; NaN is in no range."""
    penalties = f"must be {-limits.penalty} to {limits.penalty}"
    top_p = "must be 0 to 1" if limits.least_top_p == 0 else "must be above 0 and at most 1"
    ranges = {
        "temperature": (0.0, _FINITE, "must be finite and at least 0"),
        "top_k": (0, math.inf, "must be at least 0"),
        "top_p": (limits.least_top_p, 1.0, top_p),
        "min_p": (0.0, 1.0, "must be 0 to 1"),
        "repetition_penalty": (
            1 / _MOST_PENALTY,
            _MOST_PENALTY,
            f"must be {1 / _MOST_PENALTY} to {_MOST_PENALTY}",
        ),
        "presence_penalty": (-limits.penalty, limits.penalty, penalties),
        "frequency_penalty": (-limits.penalty, limits.penalty, penalties),
        "min_tokens": (0, math.inf, "must be at least 0"),
        "seed": (0, _LARGEST_SEED, "must be 0 to 2^64 - 1"),
    }
    for name, (least, most, allowed) in ranges.items():
        value = getattr(sampling, name)
        if value is not None and not least <= value <= most:
            yield FieldViolation(f"sampling.{name}", f"is {value}, {allowed}")
    yield from _check_listed_tokens(sampling, vocab_size, limits)


def _check_listed_tokens(
    sampling: SamplingParams, vocab_size: int, limits: SamplingLimits
) -> Iterator[FieldViolation]:
    allowed = f"must be 0 to {vocab_size - 1}"
    for index, token in enumerate(sampling.stop_token_ids):
        if not 0 <= token < vocab_size:
            yield FieldViolation(f"sampling.stop_token_ids[{index}]", f"is {token}, {allowed}")
    if _all_fit(sampling.logit_bias, vocab_size, limits.logit_bias):
        return
    for token, bias in sampling.logit_bias.items():
        if not 0 <= token < vocab_size:
            yield FieldViolation("sampling.logit_bias", f"names token {token}, {allowed}")
        if bias == math.inf or not -limits.logit_bias <= bias <= limits.logit_bias:
            most = limits.logit_bias
            bounds = "below infinity" if math.isinf(most) else f"{-most} to {most}"
            yield FieldViolation("sampling.logit_bias", f"is {bias} for token {token}, must be {bounds}")


def _all_fit(biases: Mapping[int, float], vocab_size: int, limit: float) -> bool:
    """Check all biases at once: a drafter with another vocabulary may exclude 200,000 tokens."""
    return not biases or (
        min(biases) >= 0
        and max(biases) < vocab_size
        and all(-limit <= bias <= limit and bias != math.inf for bias in set(biases.values()))
    )


def check_distributions(
    distributions: Sequence[SparseDistribution], drafts: Sequence[int], vocab_size: int
) -> Iterator[FieldViolation]:
    """Yield a violation unless each draft token has a valid distribution (it may be empty), or none has."""
    if distributions and len(distributions) != len(drafts):
        yield FieldViolation("distributions", f"are {len(distributions)}, drafts are {len(drafts)}")
        return
    for index, (distribution, draft) in enumerate(zip(distributions, drafts, strict=False)):
        if (fault := _distribution_fault(distribution, draft, vocab_size)) is not None:
            field, description = fault
            yield FieldViolation(f"distributions[{index}].{field}", description)


def _distribution_fault(
    distribution: SparseDistribution, draft: int, vocab_size: int
) -> tuple[str, str] | None:
    """Return the invalid field and what is wrong with it; None if the draft can have been drawn from it."""
    ids, probabilities = distribution.ids, distribution.probabilities
    if not ids and not probabilities:
        return None
    if not 1 <= len(ids) <= MOST_PROPOSED:
        return "ids", f"are {len(ids)}, must be 1 to {MOST_PROPOSED}"
    if len(probabilities) != len(ids):
        return "probabilities", f"are {len(probabilities)}, ids are {len(ids)}"
    if not all(0 <= token < vocab_size for token in ids):
        return "ids", f"must all be 0 to {vocab_size - 1}"
    if len(set(ids)) < len(ids):
        return "ids", "must be distinct"
    if draft not in ids:
        return "ids", f"lack the draft {draft}"
    if not all(0 < probability <= 1 + _TOLERANCE for probability in probabilities):
        return "probabilities", "must all be above 0 and at most 1"
    if abs((total := math.fsum(probabilities)) - 1) > _TOLERANCE:
        return "probabilities", f"have a sum of {total}, must be 1"
    return None
