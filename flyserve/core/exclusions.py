"""Tokens that the sampling parameters of a request exclude, whatever the model computes. Pure."""

from collections.abc import Sequence

from flyserve.core.limits import PUBLIC_LOGIT_BIAS
from flyserve.core.request import SamplingParams


def num_allowed(sampling: SamplingParams, drafts: Sequence[int], num_before: int) -> int:
    """Return the number of drafts before the first excluded one.

    A token with the lowest public bias is excluded, and a stop token before `min_tokens`. `num_before` tokens
    of the response come before the drafts.
    """
    biases, stops = sampling.logit_bias, sampling.stop_token_ids
    num_early = sampling.min_tokens - num_before
    if not biases and (num_early <= 0 or not stops):
        return len(drafts)
    for index, token in enumerate(drafts):
        if biases.get(token, 0.0) <= -PUBLIC_LOGIT_BIAS or (index < num_early and token in stops):
            return index
    return len(drafts)
