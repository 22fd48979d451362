"""`/v1/chat/completions`: conversations, rendered to a prompt by the model's chat template."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from flyserve.core.errors import InvalidRequest
from flyserve.core.grammar import Grammar
from flyserve.core.response import Choice, Chunk
from flyserve.core.types import Token
from router.config import LimitsConfig
from router.cost import num_values
from router.http.api_format import ApiFormat, HttpRequest, finish_reason, make_request, refuse_many_values
from router.http.chat_objects import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprob,
    ChatLogprobs,
    RankedLogprob,
    message_delta,
    whole_message,
)
from router.http.errors import renamed, renamed_text
from router.http.fields import Count, GenerationFields, Whole
from router.http.hints import HintFields
from router.http.messages import Conversation, Messages, TemplateFields, conversation_of
from router.http.older_functions import NAMES as OLDER_NAMES
from router.http.older_functions import OlderToolFields, with_function_call
from router.http.parsing import parse
from router.http.priorities import priority_of
from router.http.tool_fields import AskedTools, Tools, checked_tools
from router.tools.grammar import after_reasoning, grammar_of, limits_reasoning
from router.tools.message import MessageFormat
from router.tools.parts import Parts

_MOST_WARNINGS = 16
"""Warnings of one request."""


class ChatOptions(TemplateFields):
    """Fields of every body whose conversation is answered.

    Attributes:
        thinking_token_budget: Most tokens of the reasoning, after which the answer begins.
    """

    thinking_token_budget: Count | None = None


class ChatRequest(GenerationFields, OlderToolFields, ChatOptions, HintFields):
    """A body of `/v1/chat/completions`.

    Attributes:
        messages: The conversation, at least one message.
        max_completion_tokens: The newer name of `max_tokens`.
        logprobs: Return the log-probability of every token.
        top_logprobs: Number of most likely tokens whose log-probabilities are returned, too.
        include_reasoning: False leaves reasoning out of the response; by default true.
    """

    messages: Messages
    max_completion_tokens: Whole | None = None
    logprobs: bool | None = None
    top_logprobs: Count | None = None
    include_reasoning: bool | None = None


class Chat(ApiFormat):
    """API format of chat."""

    id_prefix = "chatcmpl-"
    response = (ChatCompletion, "chat.completion")
    chunk = (ChatChunk, "chat.completion.chunk")
    tracks_tokens = False
    """True if log-probabilities are those of the content alone."""

    def parse(self, data: Mapping[str, Any], request_id: str) -> HttpRequest:
        """Return the request of a body; the chat template may reject its messages, too."""
        body = parse(ChatRequest, data, self._limits)
        conversation = conversation_of(body.messages)
        if not body.has_functions:
            return self._request(body, conversation, body.asked_tools, request_id)
        request = self._renamed_request(body, conversation, body.asked_tools, request_id, OLDER_NAMES)
        return replace(request, final=with_function_call)

    def _renamed_request(
        self,
        body: ChatRequest,
        conversation: Conversation,
        asked: AskedTools,
        request_id: str,
        own: Mapping[str, str],
    ) -> HttpRequest:
        """Return the request of a body that has its `own` names of some fields of a chat."""
        try:
            request = self._request(body, conversation, asked, request_id)
        except InvalidRequest as error:
            raise renamed(error, own) from None
        return replace(
            request,
            names={name: own.get(field, field) for name, field in request.names.items()},
            warnings=tuple(renamed_text(each, own) for each in request.warnings),
        )

    def _request(
        self, body: ChatRequest, conversation: Conversation, asked: AskedTools, request_id: str
    ) -> HttpRequest:
        """Return the request of a conversation; the other fields are those of `body`."""
        limit_name, max_tokens = _max_tokens(body)
        logprobs = _num_logprobs(body)
        priority, tier = priority_of(body, self._limits.priority)
        formats = self._service.message_formats
        tools = checked_tools(asked, self._limits, formats)
        prompt = self._prompt(body, conversation, tools)
        message_format = formats.format(
            prompt,
            tools.schemas,
            tools.parallel,
            keeps_reasoning=body.include_reasoning is not False,
            tracks_tokens=self.tracks_tokens and logprobs is not None,
        )
        most = _most_tokens(body, logprobs, self._limits) if max_tokens is None else max_tokens
        request = make_request(body, prompt, request_id, most, logprobs, self._defaults, priority)
        grammar, grammar_field = _grammar(body, tools, message_format)
        names = {
            "prompt_token_ids": "messages",
            "max_new_tokens": limit_name,
            "logprobs": "top_logprobs",
            "request_id": "X-Request-Id",
            "grammar": grammar_field,
        }
        if body.verdicts:
            refuse_many_values(body, (request,), self._limits, names)
        request = replace(request, grammar=grammar, fills_context=max_tokens is None)
        hints = body.warnings(self._service.texts.template)
        warnings = chain(body.idle_warnings, hints, asked.warnings)
        return HttpRequest(
            body,
            (request,),
            names,
            tier,
            message_format=message_format,
            warnings=tuple(islice(warnings, _MOST_WARNINGS)),
        )

    def _prompt(self, body: ChatRequest, conversation: Conversation, tools: Tools) -> tuple[int, ...]:
        texts = self._service.texts
        messages = conversation.within(self._limits.prompt_characters)
        texts.refuse_long("messages", *(message["content"] for message in messages))
        variables = {**body.variables(texts.template), **(body.chat_template_kwargs or {})}
        return texts.render_chat(messages, variables, body.ending(messages[-1]), tools.rendered)

    def choice(
        self, choice: Choice, extra: Mapping[str, Any], sent: int = 0, parts: Parts | None = None
    ) -> ChatChoice:
        return ChatChoice(
            index=choice.index,
            message=whole_message(choice.text, parts),
            logprobs=self._logprobs(choice.tokens),
            finish_reason=finish_reason(choice, parts),
            **extra,
        )

    def chunk_choice(self, chunk: Chunk, sent: int | None, parts: Parts | None = None) -> ChatChunkChoice:
        return ChatChunkChoice(
            index=chunk.choice_index,
            delta=message_delta(chunk.text, parts, is_first=sent is None),
            logprobs=self._logprobs(chunk.tokens),
            finish_reason=finish_reason(chunk, parts),
        )

    def logprobs(self, tokens: Sequence[Token]) -> list[ChatLogprob]:
        """Return the log-probabilities of tokens; nothing if none were requested."""
        return [
            ChatLogprob(
                **self._named(token.id, token.logprobs.token),
                top_logprobs=[
                    RankedLogprob(**self._named(ranked.id, ranked.logprob)) for ranked in token.logprobs.top
                ],
            )
            for token in tokens
            if token.logprobs is not None
        ]

    def _logprobs(self, tokens: Sequence[Token]) -> ChatLogprobs | None:
        content = self.logprobs(tokens)
        return ChatLogprobs(content=content) if content else None

    def _named(self, token: int, logprob: float) -> dict[str, Any]:
        text, own = self._image(token)
        return {"token": text, "logprob": logprob, "bytes": own}


def _grammar(body: ChatRequest, tools: Tools, form: MessageFormat | None) -> tuple[Grammar | None, str]:
    """Return the grammar of the whole message, and the field that it is from.

    Raises:
        InvalidRequest: The reasoning cannot be limited.
    """
    budget, answer = _reasoning_budget(body, form), body.grammar
    grammar = grammar_of(tools, form, answer, is_needed=budget is not None)
    field = "tools" if answer is None or tools.must_call else body.grammar_names["grammar"]
    return (None if grammar is None else after_reasoning(grammar, form, budget)), field


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
    name, most = ("max_tokens", old) if new is None else ("max_completion_tokens", new)
    if most is not None and most < 1:
        raise InvalidRequest.of(name, f"is {most}, must be at least 1")
    return name, most


def _most_tokens(body: ChatRequest, logprobs: int | None, limits: LimitsConfig) -> int:
    """Return the most new tokens of a request that sets no number: no limit of a response is broken."""
    if logprobs is None and not body.verdicts:
        return limits.max_new_tokens
    per_token = max(1, num_values(body.n or 1, logprobs))
    return max(1, min(limits.max_new_tokens, limits.returned_values // per_token))


def _num_logprobs(body: ChatRequest) -> int | None:
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest.of("top_logprobs", "must not be set without logprobs: true")
    return (body.top_logprobs or 0) if body.logprobs else None
