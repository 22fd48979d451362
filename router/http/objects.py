"""What responses are made of, in OpenAI's shape; a field that was never set is left out."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

FinishReason = Literal["stop", "length"]
Statistics = Annotated[
    dict[str, int | float], Field(description="Every field of the message Statistics, by its name there.")
]


class ResponseModel(BaseModel):
    """Base of everything that a response may hold."""

    model_config = ConfigDict(frozen=True)

    def to_json(self) -> bytes:
        """UTF-8, without the fields that were never set."""
        return self.__pydantic_serializer__.to_json(self, exclude_unset=True)


class Usage(ResponseModel):
    """Tokens of the whole request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, prompt_tokens: int, completion_tokens: int) -> "Usage":
        return cls(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens,
        )


class NamedToken(ResponseModel):
    """A token and its text."""

    id: int
    text: str


class VerdictToken(ResponseModel):
    """How a token came to be; `choice` is the target's own where it is another one."""

    id: int
    text: str
    verdict: Literal["exact", "rescued", "corrected", "bonus", "plain"]
    entropy: float
    choice: NamedToken | None


class RoundObject(ResponseModel):
    """One round; times in seconds, `start_s` and `end_s` since the request came."""

    index: int
    drafted: int
    accepted: int
    start_s: float
    draft_s: float
    verify_s: float
    wire_s: float
    end_s: float


class Extension(ResponseModel):
    """What `verdicts: true` adds; the last two are told once per choice, at its end."""

    tokens: list[VerdictToken]
    rounds: list[RoundObject]
    statistics: Statistics | None = None
    warnings: list[str] | None = None


class CompletionLogprobs(ResponseModel):
    """Lists of equal length, one entry for each token."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(ResponseModel):
    """One continuation of one prompt, or a piece of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    flyserve: Extension | None = None


class Envelope(ResponseModel):
    """What every response and every chunk begins with."""

    id: str
    created: int
    model: str


class Completion(Envelope):
    """A response of `/v1/completions`, or a chunk of one: then the extension stands here."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage | None = None
    flyserve: Extension | None = None


class RankedLogprob(ResponseModel):
    """One of the most likely tokens at a position; `bytes` are those of its text in UTF-8."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatLogprob(RankedLogprob):
    """A token with the most likely ones at its position."""

    top_logprobs: list[RankedLogprob]


class ChatLogprobs(ResponseModel):
    """One entry for each token."""

    content: list[ChatLogprob]
    rejection: None = None


class AssistantMessage(ResponseModel):
    """What the model answers."""

    role: Literal["assistant"]
    content: str
    rejection: None = None


class ChatChoice(ResponseModel):
    """One answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    flyserve: Extension | None = None


class ChatCompletion(Envelope):
    """A response of `/v1/chat/completions`."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage | None = None


class Delta(ResponseModel):
    """What is new of a message; the role comes first, once."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(ResponseModel):
    """A piece of one answer."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class ChatChunk(Envelope):
    """A chunk of a response of `/v1/chat/completions`."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    flyserve: Extension | None = None


class ModelObject(ResponseModel):
    """A model that is served; `flyserve` says what requests may ask of its deployment."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | None = None
    flyserve: dict[str, Any] | None = None


class ModelList(ResponseModel):
    """All models that are served: one."""

    object: Literal["list"]
    data: list[ModelObject]


class Health(ResponseModel):
    """Whether requests can be served at once."""

    status: Literal["ready"]


class Version(ResponseModel):
    """FlyServe's."""

    version: str


class ErrorObject(ResponseModel):
    """What went wrong; `param` is the field or header that is to blame."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(ResponseModel):
    """An error."""

    error: ErrorObject
