"""What requests for completions and for chat have in common, as their bodies say it."""

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from fly.presets import PRESETS
from fly.types import Coupling, DraftLengthPolicy, EntropyEstimator, Mode, SamplingParams, Tail
from router.requests.request import SpeculationParams

_UINT32 = 2**32 - 1
_MASK64 = 2**64 - 1
T = TypeVar("T")

Count = Annotated[int, Field(ge=0, le=_UINT32)]
"""A whole number that is not negative."""
Whole = Annotated[int, Field(ge=-_UINT32, le=_UINT32)]
"""A whole number, whose range the service knows."""


def one_of(*names: str) -> Any:
    """For the document: the service itself rejects other names, by the same list as for gRPC."""
    return Field(None, json_schema_extra={"anyOf": [{"enum": list(names)}, {"type": "null"}]})


def _listed(value: Any) -> Any:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("must be a text or a list of texts")
    return value


Strings = Annotated[list[str], BeforeValidator(_listed, json_schema_input_type=str | list[str])]
"""A string counts as a list of one."""


class RequestModel(BaseModel):
    """Base of everything that a body may hold: types are not converted, unknown names are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class SpeculationFields(RequestModel):
    """How to speculate, by the names of the protos; what is absent is the deployment's default."""

    mode: str | None = one_of(*Mode)
    preset: str | None = one_of(*PRESETS)
    draft_length: Count | None = None
    draft_length_policy: str | None = one_of(*DraftLengthPolicy)
    window: Count | None = None
    threshold: float | None = None
    tail: str | None = one_of(*Tail)
    carry_after: Count | None = None
    guard_stops: bool | None = None
    guard_excluded: bool | None = None
    strict_prefix_tokens: Count | None = None
    entropy: str | None = one_of(*EntropyEstimator)
    sub_drafter: bool | None = None

    @property
    def params(self) -> SpeculationParams:
        return SpeculationParams(**self.model_dump(exclude_none=True))


class StreamOptions(RequestModel):
    """How to stream.

    Attributes:
        include_usage: One more chunk at the end tells the usage.
        include_obfuscation: Accepted; nothing is ever added to obscure a chunk's length.
        continuous_usage_stats: Every chunk tells the usage so far.
    """

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationFields(RequestModel):
    """What a request for completions or chat may say.

    Attributes:
        model: As `/v1/models` names it.
        temperature: And the four after it: what is absent is the model's own default.
        top_k: 0 and -1 keep all tokens.
        logit_bias: By token id.
        coupling: How drafter's and target's random choices are tied together.
        cache_salt: Cached prefixes and memories are shared only within one.
        timeout: Seconds after which nobody wants the response any more.
        speculation: How to speculate.
        verdicts: Tell how every token came to be, under `flyserve`.
    """

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Whole | None = None
    n: Whole | None = None
    stop: Strings | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[int, Field(ge=-1, le=_UINT32)] | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=_MASK64)] | None = None
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[Count] | None = None
    coupling: Coupling | None = Field(None, strict=False)
    cache_salt: str | None = None
    timeout: Annotated[float, Field(gt=0)] | None = None
    speculation: SpeculationFields | None = None
    verdicts: bool | None = None

    @field_validator("logit_bias")
    @classmethod
    def _has_token_ids(cls, bias: dict[str, float] | None) -> dict[str, float] | None:
        for token in bias or ():
            if not (token.isascii() and token.isdigit() and int(token[:20]) <= _UINT32):
                raise ValueError(f"names {token[:20]!r}, must have token ids as names")
        return bias

    @property
    def own_seed(self) -> int | None:
        """A negative seed counts as the unsigned number of the same bits."""
        return None if self.seed is None else self.seed & _MASK64

    def sampling(self, default: SamplingParams) -> SamplingParams:
        """How tokens are drawn; what the request leaves open is the default's."""
        bias = tuple((int(token), value) for token, value in (self.logit_bias or {}).items())
        return SamplingParams(
            temperature=_given(self.temperature, default.temperature),
            top_k=max(0, _given(self.top_k, default.top_k)),
            top_p=_given(self.top_p, default.top_p),
            min_p=_given(self.min_p, default.min_p),
            repetition_penalty=_given(self.repetition_penalty, default.repetition_penalty),
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            logit_bias=bias,
            min_tokens=self.min_tokens or 0,
            ignore_eos=bool(self.ignore_eos),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            coupling=self.coupling or Coupling.SHARED_NOISE,
        )


def _given(value: T | None, default: T) -> T:
    return default if value is None else value
