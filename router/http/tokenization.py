"""`/tokenize`, `/detokenize` and `/tokenizer_info`, in vLLM's shapes."""

from typing import Any

from pydantic import ValidationInfo, field_validator
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fly.errors import InvalidRequest
from router.config import RouterConfig
from router.http.endpoints import read_object, send_json
from router.http.errors import renamed
from router.http.fields import Count, RequestModel
from router.http.messages import Messages, rendered_messages
from router.http.models import ServedModels
from router.http.objects import Detokenized, Tokenized, TokenizerInfo
from router.http.parsing import parse
from router.service import GenerationService


class TokenizeRequest(RequestModel):
    """A body of `/tokenize`: either `prompt` or `messages`.

    Attributes:
        model: Name of the model, as in `/v1/models`.
        prompt: A text.
        messages: A conversation, rendered by the chat template.
        add_special_tokens: Add the special tokens that a prompt begins with; by default true. The chat
            template of a conversation has its own.
        add_generation_prompt: End a conversation where the model answers; by default true.
        chat_template_kwargs: Additional variables of the chat template.
        return_token_strs: Return the tokens' names in the vocabulary, too.
    """

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
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
    tokens: list[Count]


class TokenizationEndpoints:
    """Endpoints of the tokenizer."""

    def __init__(self, service: GenerationService, config: RouterConfig) -> None:
        self._service = service
        self._config = config
        self._models = ServedModels(service, config)

    async def tokenize(self, request: Request) -> Response:
        body = parse(TokenizeRequest, await read_object(request, self._config.http))
        self._require(body.model)
        try:
            ids = await self._ids(body)
        except InvalidRequest as error:
            raise renamed(error, {"text": "prompt"}) from None
        info = await self._service.describe()
        names = await self._service.token_names(ids) if body.return_token_strs else None
        limit = info.target.context_length or None
        return send_json(Tokenized(count=len(ids), max_model_len=limit, tokens=list(ids), token_strs=names))

    async def detokenize(self, request: Request) -> Response:
        body = parse(DetokenizeRequest, await read_object(request, self._config.http))
        self._require(body.model)
        return send_json(Detokenized(prompt=await self._service.detokenize(body.tokens)))

    async def info(self, request: Request) -> Response:
        return send_json(TokenizerInfo(**self._service.tokenizer_info()))

    async def _ids(self, body: TokenizeRequest) -> tuple[int, ...]:
        if (body.prompt is None) == (body.messages is None):
            raise InvalidRequest.of("prompt", "or messages must be set, and not both")
        if body.messages is None:
            adds_special = body.add_special_tokens is not False
            return await self._service.token_ids(body.prompt or "", adds_special)
        messages = rendered_messages(body.messages, self._config.limits.prompt_characters)
        is_open = body.add_generation_prompt is not False
        return await self._service.render_chat(messages, body.chat_template_kwargs or {}, is_open)

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
