"""The two API formats, completions and chat: bodies to requests, chunks to choices."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flyserve.core.errors import InvalidRequest, refuse
from flyserve.core.request import GenerateRequest, SamplingParams, SpeculationParams
from flyserve.core.response import Choice, Chunk, Part
from flyserve.core.types import FinishReason as Finish
from flyserve.core.types import PromptToken
from router.config import LimitsConfig
from router.http.errors import renamed
from router.http.fields import GenerationFields
from router.http.objects import Envelope, FinishReason, ResponseModel, ServedTier
from router.requests.validation import check_returned_values
from router.service import GenerationService
from router.tools.message import MessageFormat
from router.tools.parts import Parts


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One HTTP request for text.

    Attributes:
        body: Its fields.
        requests: One request per prompt, all with the same number of choices.
        names: Names of fields in the body, by their names in `GenerateRequest`.
        tier: Service tier that the request gets; None if it names none.
        message_format: Format of the messages of a chat, whose parts are to be found; None if all text is
            content.
        warnings: Warnings about fields that have no effect, or not the whole one.
        asked: Body as the client sent it, if its format is not that of completions or chats.
        final: Changes each choice, or its part in a chunk, before it is sent.
        echoes: Text of each request's prompt, if its choices begin with it; else empty.
    """

    body: GenerationFields
    requests: tuple[GenerateRequest, ...]
    names: Mapping[str, str]
    tier: ServedTier | None = None
    echoes: tuple[str, ...] = ()
    message_format: MessageFormat | None = None
    warnings: tuple[str, ...] = ()
    asked: Any = None
    final: Callable[[Any], Any] = lambda choice: choice


def make_request(
    body: GenerationFields,
    prompt: str | tuple[int, ...],
    request_id: str,
    max_tokens: int | None,
    logprobs: int | None,
    defaults: SamplingParams,
    priority: int,
    prompt_logprobs: int | None = None,
) -> GenerateRequest:
    """Return the request for one prompt, a text or token ids; the service checks it."""
    return GenerateRequest(
        prompt=prompt,
        request_id=request_id,
        max_new_tokens=max_tokens,
        sampling=body.sampling(defaults),
        stop=tuple(body.stop or ()),
        speculation=SpeculationParams() if body.speculation is None else body.speculation.params,
        prediction="" if body.prediction is None else body.prediction.content,
        grammar=body.grammar,
        priority=priority,
        cache_salt=body.cache_salt or "",
        n=1 if body.n is None else body.n,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def refuse_many_values(
    body: GenerationFields,
    requests: Sequence[GenerateRequest],
    limits: LimitsConfig,
    names: Mapping[str, str],
) -> None:
    """Limit the values of all prompts together; texts return none of their own.

    Verdicts are one value for each token, as log-probabilities without the most likely tokens are.
    """
    if body.verdicts and requests[0].logprobs is None:
        requests = [replace(each, logprobs=0) for each in requests]
        names = {"logprobs": "verdicts"}
    sized = [(each, 0 if isinstance(each.prompt, str) else len(each.prompt)) for each in requests]
    try:
        refuse(check_returned_values(sized, limits))
    except InvalidRequest as error:
        raise renamed(error, names) from None


_FINISH_REASONS: dict[Finish, FinishReason] = {
    Finish.LENGTH: "length",
    Finish.STOP_TOKEN: "stop",
    Finish.STOP_STRING: "stop",
}


class ApiFormat(ABC):
    """Completions or chat.

    Attributes:
        id_prefix: Prefix of a response's id, before the request's id.
        response: Type of a whole response, and the value of its field `object`.
        chunk: Those of a chunk.
    """

    id_prefix: str
    response: tuple[type[Envelope], str]
    chunk: tuple[type[Envelope], str]

    def __init__(self, service: GenerationService, defaults: SamplingParams, limits: LimitsConfig) -> None:
        self._service = service
        self._image = service.texts.image
        self._defaults = defaults
        self._limits = limits

    @abstractmethod
    def parse(self, data: Mapping[str, Any], request_id: str) -> HttpRequest:
        """Return the request of a body; runs in any thread, since a long one takes a while.

        Raises:
            FlyServeError: A field is unknown, unsupported, missing or malformed.
        """

    @abstractmethod
    def choice(
        self, choice: Choice, extra: Mapping[str, Any], sent: int = 0, parts: Parts | None = None
    ) -> ResponseModel:
        """Return a whole choice, with further fields; its tokens come after `sent` characters.

        `parts` are those of its message; None if all text is content.
        """

    @abstractmethod
    def chunk_choice(self, chunk: Chunk, sent: int | None, parts: Parts | None = None) -> ResponseModel:
        """Return the part of a choice that a chunk has.

        Args:
            chunk: Its choice index is among all choices of the HTTP request.
            sent: Characters of the choice's tokens in earlier chunks; None for its first chunk.
            parts: Parts of the message that the chunk adds; None if all text is content.
        """

    def with_echo(self, choice: Any, text: str, tokens: Sequence[PromptToken]) -> Any:
        """Return a choice, or its first part, that begins with its prompt; as it is without this feature.

        Args:
            choice: Choice without the prompt.
            text: Text of the prompt.
            tokens: Tokens of the prompt with their log-probabilities; empty if none were requested.
        """
        return choice


def finish_reason(part: Part, parts: Parts | None = None) -> FinishReason | None:
    """Return OpenAI's name of the finish reason; None while the choice has not ended.

    A message that ended within the arguments of a call, whatever ended it, has not called its tools.
    """
    if (
        parts is not None
        and parts.has_whole_calls
        and part.finish_reason in (Finish.STOP_TOKEN, Finish.STOP_STRING)
    ):
        return "tool_calls"
    return None if part.finish_reason is None else _FINISH_REASONS[part.finish_reason]
