"""`/v1/completions`: prompts as text or token ids, one or many."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Annotated, Any

from pydantic import PlainValidator

from fly.errors import InvalidRequest
from fly.request import GenerateRequest, SamplingParams
from fly.response import Choice, Chunk
from fly.types import Token
from router.config import LimitsConfig
from router.http.api_format import ApiFormat, HttpRequest, finish_reason, make_request
from router.http.fields import Count, GenerationFields
from router.http.objects import Completion, CompletionChoice, CompletionLogprobs
from router.http.parsing import parse

Prompt = str | tuple[int, ...]
_MOST = 2**32 - 1


def _prompts(value: Any) -> list[Prompt]:
    """A text, token ids, or a list of either."""
    if isinstance(value, str) or _is_ids(value):
        return [value if isinstance(value, str) else tuple(value)]
    if isinstance(value, list) and value and all(isinstance(prompt, str) for prompt in value):
        return list(value)
    if isinstance(value, list) and value and all(_is_ids(prompt) for prompt in value):
        return [tuple(prompt) for prompt in value]
    raise ValueError("must be a text, a list of token ids, a list of texts or a list of lists of token ids")


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_id(token) for token in value)


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST


Prompts = Annotated[
    list[Prompt],
    PlainValidator(_prompts, json_schema_input_type=str | list[str] | list[Count] | list[list[Count]]),
]


class CompletionRequest(GenerationFields):
    """A body of `/v1/completions`.

    Attributes:
        prompt: A text, token ids, or several of either.
        logprobs: Return the log-probability of every token, and of this many most likely ones.
    """

    prompt: Prompts
    logprobs: Count | None = None


class Completions(ApiFormat):
    """API format of completions."""

    id_prefix = "cmpl-"
    response = chunk = (Completion, "text_completion")

    def __init__(self, defaults: SamplingParams, limits: LimitsConfig) -> None:
        self._defaults = defaults
        self._limits = limits

    async def parse(self, data: Mapping[str, Any], request_id: str) -> HttpRequest:
        body = parse(CompletionRequest, data)
        if len(body.prompt) > self._limits.prompts:
            found = f"has {len(body.prompt)} prompts, at most {self._limits.prompts}"
            raise InvalidRequest.of("prompt", found)
        several = len(body.prompt) > 1
        requests = tuple(
            self._request(body, prompt, f"{request_id}-{index}" if several else request_id)
            for index, prompt in enumerate(body.prompt)
        )
        names = {"prompt_token_ids": "prompt", "max_new_tokens": "max_tokens", "request_id": "X-Request-Id"}
        return HttpRequest(body, requests, names)

    def _request(self, body: CompletionRequest, prompt: Prompt, request_id: str) -> GenerateRequest:
        return make_request(body, prompt, request_id, body.max_tokens, body.logprobs, self._defaults)

    def choice(self, choice: Choice, extra: Mapping[str, Any]) -> CompletionChoice:
        return CompletionChoice(
            index=choice.index,
            text=choice.text,
            logprobs=_logprobs(choice.tokens, 0),
            finish_reason=finish_reason(choice),
            **extra,
        )

    def chunk_choice(self, chunk: Chunk, sent: int | None) -> CompletionChoice:
        return CompletionChoice(
            index=chunk.choice_index,
            text=chunk.text,
            logprobs=_logprobs(chunk.tokens, sent or 0),
            finish_reason=finish_reason(chunk),
        )


def _logprobs(tokens: Sequence[Token], offset: int) -> CompletionLogprobs | None:
    """Return the lists of consecutive tokens; None if no log-probabilities were requested.

    `offset` is the number of characters of the choice before the first token.
    """
    found = [(token.text, token.logprobs) for token in tokens if token.logprobs is not None]
    if not found:
        return None
    texts = [text for text, _ in found]
    return CompletionLogprobs(
        tokens=texts,
        token_logprobs=[logprobs.token for _, logprobs in found],
        top_logprobs=[{ranked.text: ranked.logprob for ranked in logprobs.top} for _, logprobs in found],
        text_offset=list(accumulate(map(len, texts[:-1]), initial=offset)),
    )
