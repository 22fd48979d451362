"""Build requests for the router's service from the fields that both API formats share."""

from collections.abc import Mapping
from dataclasses import dataclass

from fly.errors import InvalidRequest
from fly.request import GenerateRequest, SamplingParams, SpeculationParams
from router.http.fields import GenerationFields


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """One HTTP request for text.

    Attributes:
        model: Name of the model, as the client sent it.
        requests: One request per prompt, all with the same number of choices.
        names: Names of fields in the body, by their names in `GenerateRequest`.
        stream: Answer with a stream of chunks.
        include_usage: Send the usage in a chunk of its own at the end of the stream.
        continuous_usage: Send the usage so far in each chunk.
        verdicts: Return the verdict of every token.
        timeout_s: Seconds after which the client no longer needs the response; None is never.
        traceparent: Context of the client's trace (W3C), if it has one.
    """

    model: str
    requests: tuple[GenerateRequest, ...]
    names: Mapping[str, str]
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    verdicts: bool = False
    timeout_s: float | None = None
    traceparent: str = ""


def make_request(
    body: GenerationFields,
    prompt: str | tuple[int, ...],
    request_id: str,
    max_tokens: int | None,
    logprobs: int | None,
    defaults: SamplingParams,
) -> GenerateRequest:
    """Return the request for one prompt; the service checks it.

    Args:
        body: Fields of the HTTP request.
        prompt: Text, or token ids.
        request_id: Id of this request.
        max_tokens: None takes the deployment's default.
        logprobs: Number of most likely tokens whose log-probabilities are returned per position; None
            returns none.
        defaults: Sampling defaults of the model.
    """
    return GenerateRequest(
        prompt=prompt,
        request_id=request_id,
        max_new_tokens=max_tokens,
        sampling=body.sampling(defaults),
        stop=tuple(body.stop or ()),
        speculation=SpeculationParams() if body.speculation is None else body.speculation.params,
        cache_salt=body.cache_salt or "",
        n=1 if body.n is None else body.n,
        logprobs=logprobs,
    )


def make_http_request(
    body: GenerationFields, requests: tuple[GenerateRequest, ...], names: Mapping[str, str]
) -> HttpRequest:
    """Return the HTTP request with the requests made from its body.

    Raises:
        InvalidRequest: It has options of a stream but requests none.
    """
    options = body.stream_options
    if options is not None and not body.stream:
        raise InvalidRequest.of("stream_options", "must not be set without stream")
    return HttpRequest(
        model=body.model,
        requests=requests,
        names=names,
        stream=bool(body.stream),
        include_usage=options is not None and bool(options.include_usage),
        continuous_usage=options is not None and bool(options.continuous_usage_stats),
        verdicts=bool(body.verdicts),
        timeout_s=body.timeout,
    )
