"""From the fields that both dialects have to a request for the router's service."""

from typing import Any

from fly.errors import InvalidRequest
from fly.types import SamplingParams
from router.http.fields import GenerationFields
from router.requests.request import GenerateRequest, SpeculationParams


def make_request(
    body: GenerationFields,
    prompt: str | tuple[int, ...],
    request_id: str,
    max_tokens: int | None,
    logprobs: int | None,
    defaults: SamplingParams,
) -> GenerateRequest:
    """The request for one prompt; the service checks it.

    Args:
        body: What is asked for.
        prompt: Text, or token ids.
        request_id: Its own.
        max_tokens: None takes the server's default.
        logprobs: Most likely tokens told per position; None tells none.
        defaults: What the model's makers say of sampling.
    """
    return GenerateRequest(
        prompt=prompt,
        request_id=request_id,
        max_new_tokens=max_tokens,
        sampling=body.sampling(defaults),
        seed=body.own_seed,
        stop=tuple(body.stop or ()),
        speculation=SpeculationParams() if body.speculation is None else body.speculation.params,
        cache_salt=body.cache_salt or "",
        n=1 if body.n is None else body.n,
        logprobs=logprobs,
    )


def stream_wishes(body: GenerationFields) -> dict[str, Any]:
    """What an order says beside its requests.

    Raises:
        InvalidRequest: Options of a stream that is not asked for.
    """
    options = body.stream_options
    if options is not None and not body.stream:
        raise InvalidRequest.of("stream_options", "must not be set without stream")
    return {
        "stream": bool(body.stream),
        "include_usage": options is not None and bool(options.include_usage),
        "continuous_usage": options is not None and bool(options.continuous_usage_stats),
        "verdicts": bool(body.verdicts),
        "timeout_s": body.timeout,
    }


def check_number(field: str, number: int, kind: str, limit: int) -> None:
    """Raises InvalidRequest where a list is too long."""
    if number > limit:
        raise InvalidRequest.of(field, f"has {number} {kind}, at most {limit}")
