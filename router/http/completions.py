"""`/v1/completions`: prompts as text or token ids, one or many."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Annotated, Any

from pydantic import PlainValidator, ValidationInfo

from flyserve.core.errors import InvalidRequest
from flyserve.core.request import GenerateRequest
from flyserve.core.response import Choice, Chunk
from flyserve.core.types import PromptToken, RankedToken, Token
from router.cost import num_values
from router.http.api_format import ApiFormat, HttpRequest, finish_reason, make_request, refuse_many_values
from router.http.errors import renamed
from router.http.fields import Count, GenerationFields
from router.http.objects import Completion, CompletionChoice, CompletionLogprobs
from router.http.parsing import parse
from router.http.priorities import priority_of
from router.http.request_model import AtMost
from router.tools.parts import Parts

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
    # NOTE: without a call per token, since a prompt may have a hundred thousand of them.
    is_numbers = isinstance(value, list) and set(map(type, value)) == {int}
    return is_numbers and min(value) >= 0 and max(value) <= _MOST


class _FewPrompts(AtMost):
    """Limit of prompts; the token ids of a single one have that of the model's context."""

    def check(self, value: Any, info: ValidationInfo) -> Any:
        is_ids = isinstance(value, list) and bool(value) and type(value[0]) is int
        return value if is_ids else super().check(value, info)


Prompts = Annotated[
    list[Prompt],
    PlainValidator(_prompts, json_schema_input_type=str | list[str] | list[Count] | list[list[Count]]),
    _FewPrompts("prompts", "prompts"),
]


class CompletionRequest(GenerationFields):
    """A body of `/v1/completions`.

    Attributes:
        prompt: A text, token ids, or several of either.
        logprobs: Return the log-probability of every token, and of this many most likely ones. The token is
            always one of those that are listed.
        echo: Begin every choice with its prompt; with `logprobs`, those of the prompt's tokens, too.
        add_special_tokens: Add the special tokens that a prompt begins with; by default true.
    """

    prompt: Prompts
    logprobs: Count | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None

    @property
    def is_as_written(self) -> bool:
        """True if a prompt gets no special tokens."""
        return self.add_special_tokens is False


class Completions(ApiFormat):
    """API format of completions."""

    id_prefix = "cmpl-"
    response = chunk = (Completion, "text_completion")

    def parse(self, data: Mapping[str, Any], request_id: str) -> HttpRequest:
        body = parse(CompletionRequest, data, self._limits)
        if body.max_tokens == 0 and not body.echo:
            raise InvalidRequest.of("max_tokens", "is 0, must be at least 1; only with echo it may be 0")
        several = len(body.prompt) > 1
        prompts = self._scored(body)
        priority, tier = priority_of(body, self._limits.priority)
        requests = tuple(
            self._request(body, prompt, f"{request_id}-{index}" if several else request_id, priority)
            for index, prompt in enumerate(prompts)
        )
        names = {
            "prompt_token_ids": "prompt",
            "prompt_logprobs": "logprobs",
            "max_new_tokens": "max_tokens",
            "request_id": "X-Request-Id",
            **body.grammar_names,
        }
        refuse_many_values(body, requests, self._limits, names)
        echoes = [self._text(prompt) for prompt in body.prompt] if body.echo else ()
        return HttpRequest(body, requests, names, tier, tuple(echoes), warnings=body.idle_warnings)

    def _request(
        self, body: CompletionRequest, prompt: Prompt, request_id: str, priority: int
    ) -> GenerateRequest:
        scored = body.logprobs if body.echo else None
        return make_request(
            body, prompt, request_id, body.max_tokens, body.logprobs, self._defaults, priority, scored
        )

    def _scored(self, body: CompletionRequest) -> list[Prompt]:
        """Return the prompts; as token ids if they are scored, or get no special tokens."""
        is_scored = bool(body.echo) and body.logprobs is not None
        if not is_scored and not body.is_as_written:
            return body.prompt
        found: list[Prompt] = []
        left = self._limits.returned_values
        for prompt in body.prompt:
            # NOTE: the rest need not be tokenized to know that there are too many values.
            found.append(self._ids(prompt, not body.is_as_written) if left >= 0 else prompt)
            left -= num_values(len(found[-1]), body.logprobs) if is_scored else 0
        return found

    def _ids(self, prompt: Prompt, adds_special: bool) -> Prompt:
        if not isinstance(prompt, str):
            return prompt
        self._service.texts.refuse_long("prompt", prompt)
        try:
            return self._service.texts.token_ids(prompt, adds_special)
        except InvalidRequest as error:
            raise renamed(error, {"text": "prompt"}) from None

    def _text(self, prompt: Prompt) -> str:
        return prompt if isinstance(prompt, str) else self._service.texts.text_of(prompt)

    def choice(
        self, choice: Choice, extra: Mapping[str, Any], sent: int = 0, parts: Parts | None = None
    ) -> CompletionChoice:
        return CompletionChoice(
            index=choice.index,
            text=choice.text,
            logprobs=self._logprobs(choice.tokens, sent),
            finish_reason=finish_reason(choice),
            **extra,
        )

    def chunk_choice(self, chunk: Chunk, sent: int | None, parts: Parts | None = None) -> CompletionChoice:
        return CompletionChoice(
            index=chunk.choice_index,
            text=chunk.text,
            logprobs=self._logprobs(chunk.tokens, sent or 0),
            finish_reason=finish_reason(chunk),
        )

    def with_echo(
        self, choice: CompletionChoice, text: str, tokens: Sequence[PromptToken]
    ) -> CompletionChoice:
        changes: dict[str, Any] = {"text": text + choice.text}
        if tokens:
            prompt, own = self._prompt_logprobs(tokens), choice.logprobs
            changes["logprobs"] = prompt if own is None else _joined(prompt, own)
        return choice.model_copy(update=changes)

    def _prompt_logprobs(self, tokens: Sequence[PromptToken]) -> CompletionLogprobs:
        return CompletionLogprobs(
            tokens=[self._image(token.id).text for token in tokens],
            token_logprobs=[token.logprob for token in tokens],
            top_logprobs=[
                None if token.logprob is None else self._by_name(token.id, token.logprob, token.top)
                for token in tokens
            ],
            text_offset=_offsets(tokens, 0),
        )

    def _logprobs(self, tokens: Sequence[Token], offset: int) -> CompletionLogprobs | None:
        """Return the lists of consecutive tokens; None if no log-probabilities were requested.

        `offset` is the number of characters of the choice before the first token.
        """
        found = [(token, token.logprobs) for token in tokens if token.logprobs is not None]
        if not found:
            return None
        return CompletionLogprobs(
            tokens=[self._image(token.id).text for token, _ in found],
            token_logprobs=[logprobs.token for _, logprobs in found],
            top_logprobs=[self._by_name(token.id, logprobs.token, logprobs.top) for token, logprobs in found],
            text_offset=_offsets([token for token, _ in found], offset),
        )

    def _by_name(self, token: int, logprob: float, top: Sequence[RankedToken]) -> dict[str, float]:
        """Return log-probabilities by text; of tokens with the same text all but the first by their ids.

        The token itself is the last one, unless it is among the most likely ones.
        """
        listed = {ranked.id: ranked.logprob for ranked in top}
        listed.setdefault(token, logprob)
        found: dict[str, float] = {}
        for each, value in listed.items():
            name = self._image(each).text
            found[f"token_id:{each}" if name in found else name] = value
        return found


def _offsets(tokens: Sequence[Token | PromptToken], offset: int) -> list[int]:
    """Return the place of each token in the text, after `offset` characters."""
    return list(accumulate([len(token.text) for token in tokens[:-1]], initial=offset))


def _joined(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    """Return the lists of both; the offsets are already those in the joined text."""
    return CompletionLogprobs(
        tokens=first.tokens + second.tokens,
        token_logprobs=first.token_logprobs + second.token_logprobs,
        top_logprobs=first.top_logprobs + second.top_logprobs,
        text_offset=first.text_offset + second.text_offset,
    )
