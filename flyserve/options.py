"""Arguments of one request."""

import uuid
from collections.abc import Sequence
from typing import TypedDict, Unpack

from fly.request import GenerateRequest, SamplingParams, SpeculationParams

Prompt = str | Sequence[int]
"""Text, or token ids."""


class RequestOptions(TypedDict, total=False):
    """Keyword arguments of `generate` and `stream`, all optional.

    Attributes:
        stop: The response ends before the first of these strings.
        n: Number of choices, decoded in parallel; 1 by default.
        logprobs: Return log-probabilities, also those of this many most likely tokens; 0 to 20.
        cache_salt: The servers share cached prefixes and memories only between requests with the same salt.
        priority: Higher values run first when work queues; 0 by default.
        request_id: For logs, the server's too; drawn by default.
    """

    stop: Sequence[str]
    n: int
    logprobs: int | None
    cache_salt: str
    priority: int
    request_id: str


def make_request(
    prompt: Prompt,
    max_new_tokens: int | None = None,
    sampling: SamplingParams | None = None,
    speculation: SpeculationParams | None = None,
    **options: Unpack[RequestOptions],
) -> GenerateRequest:
    """Return the request; the wire and the server check it."""
    return GenerateRequest(
        prompt=prompt if isinstance(prompt, str) else tuple(prompt),
        max_new_tokens=max_new_tokens,
        sampling=sampling or SamplingParams(),
        speculation=speculation or SpeculationParams(),
        request_id=options.get("request_id") or uuid.uuid4().hex,
        stop=tuple(options.get("stop", ())),
        n=options.get("n", 1),
        logprobs=options.get("logprobs"),
        cache_salt=options.get("cache_salt", ""),
        priority=options.get("priority", 0),
    )
