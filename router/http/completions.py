"""`/v1/completions`: prompts as text or token ids, one or many."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import PlainValidator

from fly.types import SamplingParams
from router.config import LimitsConfig
from router.generation.response import Piece
from router.http.dialect import Order, finish_reason, text_of
from router.http.fields import Count, GenerationFields
from router.http.logprobs import completion_logprobs
from router.http.objects import Completion, CompletionChoice
from router.http.ordering import check_number, make_request, stream_wishes
from router.http.parsing import parse
from router.requests.request import GenerateRequest

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
        logprobs: Tell the log-probability of every token, and of so many most likely ones.
    """

    prompt: Prompts
    logprobs: Count | None = None


class Completions:
    """The dialect of completions."""

    id_prefix = "cmpl-"
    response_type = chunk_type = Completion
    response_object = chunk_object = "text_completion"

    def __init__(self, defaults: SamplingParams, limits: LimitsConfig) -> None:
        self._defaults = defaults
        self._limits = limits

    async def order(self, data: Mapping[str, Any], request_id: str) -> Order:
        """What a body asks for.

        Raises:
            InvalidRequest: A field is unknown, unsupported, missing or malformed.
        """
        body = parse(CompletionRequest, data)
        check_number("prompt", len(body.prompt), "prompts", self._limits.prompts)
        several = len(body.prompt) > 1
        requests = tuple(
            self._request(body, prompt, f"{request_id}-{index}" if several else request_id)
            for index, prompt in enumerate(body.prompt)
        )
        names = {"prompt_token_ids": "prompt", "max_new_tokens": "max_tokens", "request_id": "X-Request-Id"}
        return Order(model=body.model, requests=requests, names=names, **stream_wishes(body))

    def _request(self, body: CompletionRequest, prompt: Prompt, request_id: str) -> GenerateRequest:
        return make_request(body, prompt, request_id, body.max_tokens, body.logprobs, self._defaults)

    def choice(self, index: int, pieces: Sequence[Piece], extra: Mapping[str, Any]) -> CompletionChoice:
        tokens = [token for piece in pieces for token in piece.tokens]
        return CompletionChoice(
            index=index,
            text=text_of(pieces),
            logprobs=completion_logprobs(tokens, 0),
            finish_reason=finish_reason(pieces[-1]),
            **extra,
        )

    def chunk_choice(self, index: int, piece: Piece, sent: int | None) -> CompletionChoice:
        logprobs = completion_logprobs(piece.tokens, sent or 0)
        return CompletionChoice(
            index=index, text=piece.text, logprobs=logprobs, finish_reason=finish_reason(piece)
        )
