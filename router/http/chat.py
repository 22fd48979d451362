"""`/v1/chat/completions`: conversations, rendered to a prompt by the model's chat template."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fly.errors import InvalidRequest
from fly.request import SamplingParams
from fly.response import Choice, Chunk
from fly.types import Token
from router.config import LimitsConfig
from router.http.api_format import ApiFormat, HttpRequest, finish_reason, make_request
from router.http.chat_objects import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprob,
    ChatLogprobs,
    RankedLogprob,
)
from router.http.fields import Count, GenerationFields, TemplateVariables, Whole
from router.http.message_objects import message_delta, whole_message
from router.http.messages import Messages, rendered_messages
from router.http.parsing import parse
from router.http.priorities import priority_of
from router.http.tool_fields import ToolFields, checked_tools
from router.service import GenerationService
from router.tools.grammar import after_reasoning, grammar_of, limits_reasoning
from router.tools.message import MessageFormat
from router.tools.parts import Parts


class ChatRequest(GenerationFields, ToolFields):
    """A body of `/v1/chat/completions`.

    Attributes:
        messages: The conversation, at least one message.
        max_completion_tokens: The newer name of `max_tokens`.
        logprobs: Return the log-probability of every token.
        top_logprobs: Number of most likely tokens whose log-probabilities are returned, too.
        chat_template_kwargs: Additional variables of the chat template.
        include_reasoning: False leaves reasoning out of the response; by default true.
        thinking_token_budget: Most tokens of the reasoning, after which the answer begins.
    """

    messages: Messages
    max_completion_tokens: Whole | None = None
    logprobs: bool | None = None
    top_logprobs: Count | None = None
    chat_template_kwargs: TemplateVariables | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: Count | None = None


class Chat(ApiFormat):
    """API format of chat."""

    id_prefix = "chatcmpl-"
    response = (ChatCompletion, "chat.completion")
    chunk = (ChatChunk, "chat.completion.chunk")

    def __init__(self, service: GenerationService, defaults: SamplingParams, limits: LimitsConfig) -> None:
        self._service = service
        self._defaults = defaults
        self._limits = limits

    def parse(self, data: Mapping[str, Any], request_id: str) -> HttpRequest:
        """Return the request of a body; the chat template may reject its messages, too."""
        body = parse(ChatRequest, data, self._limits)
        limit_name, max_tokens = _max_tokens(body)
        logprobs = _num_logprobs(body)
        priority, tier = priority_of(body, self._limits.priority)
        formats = self._service.message_formats
        tools = checked_tools(body, self._limits, formats)
        arguments_as_text = formats.parser is not None and formats.parser.arguments_as_text
        messages = rendered_messages(body.messages, self._limits.prompt_characters, arguments_as_text)
        self._service.refuse_long("messages", *(message["content"] for message in messages))
        variables = body.chat_template_kwargs or {}
        prompt = self._service.render_chat(messages, variables, tools=tools.rendered)
        keeps_reasoning = body.include_reasoning is not False
        parallel = body.parallel_tool_calls is not False
        message_format = formats.format(prompt, tools.names, parallel, keeps_reasoning)
        request = make_request(body, prompt, request_id, max_tokens, logprobs, self._defaults, priority)
        grammar_names = body.grammar_names
        budget = _reasoning_budget(body, message_format)
        is_needed = budget is not None and request.grammar is None
        if (grammar := grammar_of(tools, message_format, is_needed)) is not None:
            if request.grammar is not None:
                found = "must not be set with tools that are required or strict: both are grammars"
                raise InvalidRequest.of(grammar_names["grammar"], found)
            request, grammar_names = replace(request, grammar=grammar), {"grammar": "tools"}
        if request.grammar is not None:
            request = replace(request, grammar=after_reasoning(request.grammar, message_format, budget))
        names = {
            "prompt_token_ids": "messages",
            "max_new_tokens": limit_name,
            "logprobs": "top_logprobs",
            "request_id": "X-Request-Id",
            **grammar_names,
        }
        return HttpRequest(body, (request,), names, tier, message_format=message_format)

    def choice(
        self, choice: Choice, extra: Mapping[str, Any], sent: int = 0, parts: Parts | None = None
    ) -> ChatChoice:
        return ChatChoice(
            index=choice.index,
            message=whole_message(choice.text, parts),
            logprobs=_logprobs(choice.tokens),
            finish_reason=finish_reason(choice, has_calls=parts is not None and parts.has_calls),
            **extra,
        )

    def chunk_choice(self, chunk: Chunk, sent: int | None, parts: Parts | None = None) -> ChatChunkChoice:
        return ChatChunkChoice(
            index=chunk.choice_index,
            delta=message_delta(chunk.text, parts, is_first=sent is None),
            logprobs=_logprobs(chunk.tokens),
            finish_reason=finish_reason(chunk, has_calls=parts is not None and parts.has_calls),
        )


def _reasoning_budget(body: ChatRequest, form: MessageFormat | None) -> int | None:
    """Return the most tokens of the reasoning; raise InvalidRequest if the model's cannot be limited."""
    budget = body.thinking_token_budget
    if budget is not None and not limits_reasoning(form):
        needed = "the chat template must have reasoning, and </think> must be a token of the vocabulary"
        raise InvalidRequest.of("thinking_token_budget", f"is {budget}, but cannot be applied: {needed}")
    return budget


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
