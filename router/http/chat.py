"""`/v1/chat/completions`: conversations, rendered to a prompt by the model's chat template."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from fly.errors import InvalidRequest
from fly.request import SamplingParams
from fly.response import Choice, Chunk
from fly.types import Token
from router.config import LimitsConfig
from router.http.api_format import ApiFormat, HttpRequest, finish_reason, make_request
from router.http.fields import Count, GenerationFields, RequestModel, Text, Whole
from router.http.objects import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprob,
    ChatLogprobs,
    Delta,
    RankedLogprob,
)
from router.http.parsing import parse
from router.http.priorities import priority_of
from router.service import GenerationService

_CARRIED = ("tool_calls", "function_call", "tool_call_id", "audio", "refusal")


def _known_role(value: Any) -> Any:
    if value in ("tool", "function"):
        raise PydanticCustomError("unsupported", "is {role}: tools are not supported", {"role": value})
    return "system" if value == "developer" else value


class Message(RequestModel):
    """One message of a conversation; the role developer counts as system."""

    role: Annotated[
        Literal["system", "user", "assistant"],
        BeforeValidator(
            _known_role, json_schema_input_type=Literal["system", "developer", "user", "assistant"]
        ),
    ]
    content: Text
    name: str | None = None

    @property
    def as_dict(self) -> dict[str, str]:
        return self.model_dump(exclude_none=True)


def _without_empty_extras(value: Any) -> Any:
    """Drop empty fields of an assistant's message, which clients send back as they received it."""
    if not isinstance(value, dict):
        return value
    asked = [name for name in _CARRIED if value.get(name)]
    if asked:
        raise PydanticCustomError("unsupported", "has {name}, which is not supported", {"name": asked[0]})
    return {key: item for key, item in value.items() if key not in _CARRIED}


Messages = Annotated[list[Annotated[Message, BeforeValidator(_without_empty_extras)]], Field(min_length=1)]
"""A conversation, at least one message."""


class ChatRequest(GenerationFields):
    """A body of `/v1/chat/completions`.

    Attributes:
        messages: The conversation, at least one message.
        max_completion_tokens: The newer name of `max_tokens`.
        logprobs: Return the log-probability of every token.
        top_logprobs: Number of most likely tokens whose log-probabilities are returned, too.
        chat_template_kwargs: Additional variables of the chat template.
    """

    messages: Messages
    max_completion_tokens: Whole | None = None
    logprobs: bool | None = None
    top_logprobs: Count | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class Chat(ApiFormat):
    """API format of chat."""

    id_prefix = "chatcmpl-"
    response = (ChatCompletion, "chat.completion")
    chunk = (ChatChunk, "chat.completion.chunk")

    def __init__(self, service: GenerationService, defaults: SamplingParams, limits: LimitsConfig) -> None:
        self._service = service
        self._defaults = defaults
        self._limits = limits

    async def parse(self, data: Mapping[str, Any], request_id: str) -> HttpRequest:
        """Return the request of a body; the chat template may reject its messages, too."""
        body = parse(ChatRequest, data)
        limit_name, max_tokens = _max_tokens(body)
        logprobs = _num_logprobs(body)
        priority, tier = priority_of(body, self._limits.priority)
        messages = [message.as_dict for message in body.messages]
        prompt = await self._service.render_chat(messages, body.chat_template_kwargs or {})
        request = make_request(body, prompt, request_id, max_tokens, logprobs, self._defaults, priority)
        names = {
            "prompt_token_ids": "messages",
            "max_new_tokens": limit_name,
            "logprobs": "top_logprobs",
            "request_id": "X-Request-Id",
            **body.grammar_names,
        }
        return HttpRequest(body, (request,), names, tier)

    def choice(self, choice: Choice, extra: Mapping[str, Any], sent: int = 0) -> ChatChoice:
        return ChatChoice(
            index=choice.index,
            message=AssistantMessage(role="assistant", content=choice.text, refusal=None),
            logprobs=_logprobs(choice.tokens),
            finish_reason=finish_reason(choice),
            **extra,
        )

    def chunk_choice(self, chunk: Chunk, sent: int | None) -> ChatChunkChoice:
        is_first = sent is None
        return ChatChunkChoice(
            index=chunk.choice_index,
            delta=Delta(role="assistant", content=chunk.text) if is_first else Delta(content=chunk.text),
            logprobs=_logprobs(chunk.tokens),
            finish_reason=finish_reason(chunk),
        )


def _max_tokens(body: ChatRequest) -> tuple[str, int | None]:
    """Return the name under which the limit is given, and the limit."""
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        found = f"is {old}, but max_completion_tokens is {new}: give one of them"
        raise InvalidRequest.of("max_tokens", found)
    return ("max_tokens", old) if new is None else ("max_completion_tokens", new)


def _num_logprobs(body: ChatRequest) -> int | None:
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest.of("top_logprobs", "must not be set without logprobs: true")
    return (body.top_logprobs or 0) if body.logprobs else None


def _logprobs(tokens: Sequence[Token]) -> ChatLogprobs | None:
    """Return the entries of a chat choice; None if no log-probabilities were requested."""
    content = [
        ChatLogprob(
            token=token.text,
            logprob=token.logprobs.token,
            bytes=_bytes(token.text),
            top_logprobs=[
                RankedLogprob(token=ranked.text, logprob=ranked.logprob, bytes=_bytes(ranked.text))
                for ranked in token.logprobs.top
            ],
        )
        for token in tokens
        if token.logprobs is not None
    ]
    return ChatLogprobs(content=content) if content else None


def _bytes(text: str) -> list[int]:
    return list(text.encode("utf-8"))
