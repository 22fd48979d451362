"""Measure the seconds of a decoded token and of a verification on vLLM, when it starts."""

import time

from fly.messages import VERIFIED_TOKENS, ForwardCosts
from services.engine.vllm.client import VllmClient
from services.engine.vllm.requests import TokenRequest
from services.engine.vllm_args import MIN_LOGPROBS

_RUNS = 3
_TOKENS = 9
"""Tokens that a measured request decodes; those after the first take a forward each."""


async def measure_costs(client: VllmClient, context_length: int) -> ForwardCosts | None:
    """Measure short requests on an idle engine, the fastest of a few; None if the context has no room.

    A decoded token is one of a request for several, as in a response without drafts. A verification is a
    request of its own, with its way to the engine and back: that is what a round waits for.
    """
    if context_length < VERIFIED_TOKENS + _TOKENS:
        return None
    prompt = [1] * VERIFIED_TOKENS
    one_s = await _least_s(client, TokenRequest(prompt, None))
    several_s = await _least_s(client, TokenRequest(prompt, None, max_tokens=_TOKENS))
    scored = TokenRequest(prompt, MIN_LOGPROBS, num_rows=VERIFIED_TOKENS - 1)
    verify_s = await _least_s(client, scored)
    return ForwardCosts(max(0.0, several_s - one_s) / (_TOKENS - 1), verify_s)


async def _least_s(client: VllmClient, request: TokenRequest) -> float:
    """Return the seconds of the fastest of a few requests."""
    found = list[float]()
    for _ in range(_RUNS):
        started = time.perf_counter()
        await client.answer(request)
        found.append(time.perf_counter() - started)
    return min(found)
