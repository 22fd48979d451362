"""A streamed completion over HTTP that can be cut off in the middle."""

import httpx2

from benchmarks.scenarios.soak.requests import Request
from fly.errors import FlyServeError, InvalidRequest

_TIMEOUT_S = 60.0


async def complete(url: str, request: Request, close_after: int | None = None) -> bool:
    """Send a request over a connection of its own; return True if the whole response arrived.

    Args:
        url: URL of the router's HTTP API.
        request: Its prompt, length, mode and options are sent.
        close_after: Events of the stream after which the connection is closed; None reads to the end.

    Raises:
        InvalidRequest: The server rejected it.
        FlyServeError: The stream failed, or ended before the response did.
    """
    body = {
        "model": "target",
        "prompt": list(request.prompt),
        "max_tokens": request.max_new_tokens,
        "temperature": request.sampling.temperature,
        "speculation": {"mode": request.speculation.mode, "preset": request.speculation.preset},
        "stream": True,
        **request.options,
    }
    try:
        async with (
            httpx2.AsyncClient(timeout=_TIMEOUT_S) as client,
            client.stream("POST", f"{url}/v1/completions", json=body) as response,
        ):
            if response.is_client_error:
                raise InvalidRequest.of("request", f"was answered with status {response.status_code}")
            response.raise_for_status()
            return await _read_events(response, close_after)
    except httpx2.HTTPError as error:
        raise FlyServeError(f"the HTTP request failed: {error}") from None


async def _read_events(response: httpx2.Response, close_after: int | None) -> bool:
    num_events = 0
    async for line in response.aiter_lines():
        if line.startswith("data: [DONE]"):
            return True
        num_events += line.startswith("data: ")
        if close_after is not None and num_events >= close_after:
            return False
    raise FlyServeError("the stream ended before the response did")
