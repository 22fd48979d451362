"""Objects of responses, in OpenAI's shape; a field that was never set is left out."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from flyserve.core.response import DeploymentInfo, Round, Statistics

FinishReason = Literal["stop", "length", "tool_calls", "function_call"]
ServedTier = Literal["default", "flex", "priority"]


class ResponseModel(BaseModel):
    """Base of all objects of a response."""

    model_config = ConfigDict(frozen=True)

    def to_json(self) -> bytes:
        """Return UTF-8 JSON without the fields that were never set."""
        return self.__pydantic_serializer__.to_json(self, exclude_unset=True)


class PromptTokensDetails(ResponseModel):
    """Prompt tokens by kind; `cached_tokens` are those that no choice had to compute."""

    cached_tokens: int


class CompletionTokensDetails(ResponseModel):
    """Tokens of reasoning; and draft tokens that were taken from the prediction, by what became of them."""

    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(ResponseModel):
    """Tokens of the whole request; the details are known when all its choices have ended."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None


class SpeculativeDecoding(ResponseModel):
    """Acceptance of drafts, in the shape of vLLM; rescued tokens count as accepted.

    Attributes:
        mean_acceptance_length: Tokens per round with a draft, the target's own included.
        draft_acceptance_rate: Accepted draft tokens by verified ones.
        acceptance_histogram: Number of rounds by the number of draft tokens that they accepted, from 0.
        num_spec_steps: Rounds with a draft.
        num_spec_tokens: Length of the longest draft.
    """

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int


class Metrics(ResponseModel):
    """Figures of the whole request; present if `router.http.speculation_metrics` is on."""

    speculative_decoding: SpeculativeDecoding


class NamedToken(ResponseModel):
    """A token and its text."""

    id: int
    text: str


class VerdictToken(NamedToken):
    """A token and its verdict; `choice` is the target's own choice if it differs.

    `entropy` is null for the drafter's own model, and where the verdict is `plain` unless log-probabilities
    were requested.
    """

    verdict: Literal["exact", "rescued", "corrected", "bonus", "plain", "draft"]
    entropy: float | None
    choice: NamedToken | None


class Extension(ResponseModel):
    """Fields that `verdicts: true` adds; the last two are sent once per choice, at its end."""

    tokens: list[VerdictToken]
    rounds: list[Round]
    statistics: Statistics | None = None
    warnings: list[str] | None = None


class CompletionLogprobs(ResponseModel):
    """Lists of equal length, one entry for each token; the first token of a prompt has no log-probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class ChoiceHead(ResponseModel):
    """Fields that every choice and every part of one have."""

    index: int
    finish_reason: FinishReason | None
    flyserve: Extension | None = None


class CompletionChoice(ChoiceHead):
    """One continuation of one prompt, or a part of it."""

    text: str
    logprobs: CompletionLogprobs | None


class Envelope(ResponseModel):
    """First fields of every response and every chunk; the tier is there if the request names one.

    Warnings say what of the request has no effect; in a stream the last chunk of a choice has them.
    """

    id: str
    created: int
    model: str
    service_tier: ServedTier | None = None
    usage: Usage | None = None
    metrics: Metrics | None = None
    warnings: list[str] | None = None


class Completion(Envelope):
    """A response of `/v1/completions`, or a chunk of one; a chunk has its extension here."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    flyserve: Extension | None = None


class ModelObject(ResponseModel):
    """A model that is served; `flyserve` has the models, defaults and limits of its deployment.

    `root` is the id again: it is the folder of the weights in vLLM, which is nobody else's concern.
    """

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int | None = None
    flyserve: DeploymentInfo | None = None


class ModelList(ResponseModel):
    """All models that are served: the target's, and the drafter's if drafters serve it."""

    object: Literal["list"]
    data: list[ModelObject]


class Health(ResponseModel):
    """Readiness: requests can be served at once."""

    status: Literal["ready"]


class Version(ResponseModel):
    """Version of FlyServe."""

    version: str


class Tokenized(ResponseModel):
    """Token ids of a text or a conversation; `token_strs` are their names in the vocabulary, if requested."""

    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(ResponseModel):
    """Text of tokens, special ones included."""

    prompt: str


class TokenizerInfo(ResponseModel):
    """Tokenizer of the model; a token that it does not have is null."""

    tokenizer_class: str
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str | None


class ErrorObject(ResponseModel):
    """Description of an error; `param` is the field or header that caused it."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(ResponseModel):
    """An error."""

    error: ErrorObject
