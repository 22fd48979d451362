"""`/tokenize`, `/detokenize` and `/tokenizer_info`, in vLLM's shapes."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from flyserve.core.errors import InvalidRequest
from router.config import RouterConfig
from router.cost import cpu_s, off_loop
from router.http.connection import while_connected
from router.http.endpoints import send_json
from router.http.errors import renamed
from router.http.fields import Count
from router.http.json_body import JsonBody, read_object
from router.http.messages import Messages, TemplateFields, conversation_of
from router.http.models import ServedModels
from router.http.objects import Detokenized, Tokenized, TokenizerInfo
from router.http.parsing import parse
from router.http.request_model import AtMost, RequestModel
from router.http.tool_fields import ToolFields, checked_tools
from router.service import GenerationService


class TokenizeRequest(TemplateFields, ToolFields):
    """A body of `/tokenize`: either `prompt`, or `messages`, perhaps with tools.

    Attributes:
        model: Name of the model, as in `/v1/models`.
        prompt: A text.
        messages: A conversation, rendered by the chat template.
        add_special_tokens: Add the special tokens that a prompt begins with; by default true. The chat
            template of a conversation has its own.
        return_token_strs: Return the tokens' names in the vocabulary, too.
    """

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    @field_validator("add_special_tokens")
    @classmethod
    def _has_no_template(cls, value: bool | None, known: ValidationInfo) -> bool | None:
        if value and known.data.get("messages") is not None:
            raise ValueError("must not be true with messages: the chat template adds them")
        return value


class DetokenizeRequest(RequestModel):
    """A body of `/detokenize`.

    Attributes:
        model: Name of the model, as in `/v1/models`.
        tokens: Token ids.
    """

    model: str | None = None
    tokens: Annotated[list[Count], Field(fail_fast=True), AtMost("prompt_characters", "ids")]


class TokenizationEndpoints:
    """Endpoints of the tokenizer."""

    def __init__(self, service: GenerationService, config: RouterConfig) -> None:
        self._service = service
        self._config = config
        self._models = ServedModels(service, config)

    async def tokenize(self, request: Request) -> Response:
        given = await read_object(request, self._config.http)
        return await while_connected(request.receive, self._tokenize(given))

    async def detokenize(self, request: Request) -> Response:
        given = await read_object(request, self._config.http)
        work = off_loop(given.cost_s, lambda: self._detokenized(given.fields))
        return await while_connected(request.receive, work)

    async def info(self, request: Request) -> Response:
        return send_json(TokenizerInfo(**self._service.texts.tokenizer_info()))

    async def _tokenize(self, given: JsonBody) -> Response:
        found = await off_loop(given.cost_s, lambda: self._tokenized(given.fields))
        limit = (await self._service.describe()).target.context_length or None
        cost_s = cpu_s(values=found.count)
        return await off_loop(cost_s, lambda: send_json(found.model_copy(update={"max_model_len": limit})))

    def _detokenized(self, fields: Mapping[str, Any]) -> Response:
        body = parse(DetokenizeRequest, fields, self._config.limits)
        self._require(body.model)
        return send_json(Detokenized(prompt=self._service.texts.detokenize(body.tokens)))

    def _tokenized(self, fields: Mapping[str, Any]) -> Tokenized:
        """Return the tokens of a body's text or conversation; the model's length is not known here."""
        body = parse(TokenizeRequest, fields, self._config.limits)
        self._require(body.model)
        try:
            ids = self._ids(body)
        except InvalidRequest as error:
            raise renamed(error, {"text": "prompt"}) from None
        names = self._service.texts.token_names(ids) if body.return_token_strs else None
        return Tokenized(count=len(ids), max_model_len=None, tokens=list(ids), token_strs=names)

    def _ids(self, body: TokenizeRequest) -> tuple[int, ...]:
        if (body.prompt is None) == (body.messages is None):
            raise InvalidRequest.of("prompt", "or messages must be set, and not both")
        if body.messages is None:
            adds_special = body.add_special_tokens is not False
            return self._service.texts.token_ids(body.prompt or "", adds_special)
        limits = self._config.limits
        tools = checked_tools(body.asked_tools, limits, self._service.message_formats)
        conversation = conversation_of(body.messages)
        texts = self._service.texts
        messages = conversation.within(limits.prompt_characters)
        variables, ending = body.chat_template_kwargs or {}, body.ending(messages[-1])
        return texts.render_chat(messages, variables, ending, tools.rendered)

    def _require(self, model: str | None) -> None:
        if model is not None:
            self._models.require(model)

    @property
    def routes(self) -> list[Route]:
        return [
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            Route("/tokenizer_info", self.info, methods=["GET"]),
        ]
