"""Fields that the bodies of completions and chat share, derived from the request types of `flyserve.core`."""

from dataclasses import fields, replace
from enum import Enum
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from flyserve.core.limits import MOST_PRIORITY, MOST_TIMEOUT_S
from flyserve.core.presets import PRESETS
from flyserve.core.request import DraftLength, SamplingParams, SpeculationParams
from router.http.grammar_fields import GrammarFields
from router.http.request_model import AtMost, RequestModel, SentBack
from router.speculation_config import TargetMode
from services.common.derived_model import with_fields_of

_UINT32 = 2**32 - 1
_MASK64 = 2**64 - 1
_MOST_NAMES = 64
"""Most members of an enumeration in one list."""

Count = Annotated[int, Field(ge=0, le=_UINT32)]
"""A whole number that is not negative."""
Whole = Annotated[int, Field(ge=-_UINT32, le=_UINT32)]
"""A whole number whose range the service checks."""
Priority = Annotated[int, Field(ge=-MOST_PRIORITY, le=MOST_PRIORITY)]
"""A priority in vLLM's sign: lower values run first."""
Timeout = Annotated[float, Field(gt=0, le=MOST_TIMEOUT_S)]
"""Seconds, at most one day."""


def _listed(value: Any) -> Any:
    if isinstance(value, str):
        return [value] if value else []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("must be a text or a list of texts")
    return value


Strings = Annotated[
    list[str],
    BeforeValidator(_listed, json_schema_input_type=str | list[str]),
    AtMost("stop_strings", "strings"),
]
"""A string counts as a list of one, and an empty one requests nothing."""
TokenIds = Annotated[list[Count], AtMost("listed_tokens", "tokens")]
"""Token ids that the sampler treats in another way."""


def http_type(kind: Any) -> Any:
    """Return the type of a JSON field for the type of a dataclass's field."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return Annotated[kind, Field(strict=False)]
    if get_origin(kind) is tuple and kind != tuple[int, ...]:
        return Annotated[list[http_type(get_args(kind)[0])], AtMost(_MOST_NAMES)]  # type: ignore[misc]
    return {int: Count, tuple[int, ...]: TokenIds}.get(kind, kind)


@with_fields_of(DraftLength, http_type)
class DraftLengthFields(RequestModel):
    """Length of drafts."""


def _draft_length(value: Any) -> Any:
    """Accept a number as the short form of a fixed length."""
    return {"max": value} if isinstance(value, int) and not isinstance(value, bool) else value


@with_fields_of(SpeculationParams, http_type)
class SpeculationFields(RequestModel):
    """Speculation; absent fields take the deployment's defaults."""

    mode: TargetMode | None = Field(None, description="Decoding mode.")
    preset: str | None = Field(None, examples=list(PRESETS))
    draft_length: (
        Annotated[
            DraftLengthFields,
            BeforeValidator(_draft_length, json_schema_input_type=DraftLengthFields | Count),
        ]
        | None
    ) = None

    @property
    def params(self) -> SpeculationParams:
        given = _given_fields(self, SpeculationParams)
        if self.draft_length is not None:
            given["draft_length"] = DraftLength(**_given_fields(self.draft_length, DraftLength))
        return SpeculationParams(**given)


class StreamOptions(RequestModel):
    """Options of a stream.

    Attributes:
        include_usage: Send one more chunk at the end, with the usage.
        include_obfuscation: Accepted without effect: nothing is ever added to obscure a chunk's length.
        continuous_usage_stats: Send the usage so far in every chunk.
    """

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class TextPart(SentBack):
    """A part of a message's content, or of a prediction's; `text` and `input_text` are what clients write."""

    type: Literal["text", "input_text", "output_text"] | None = "text"
    text: str


class RefusalPart(SentBack):
    """A part of an assistant's message: its refusal to answer, which counts as its text."""

    type: Literal["refusal"]
    refusal: str


_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Key of the text in a part, by the part's type."""
_THOUGHTS = ("thinking", "redacted_thinking", "reasoning")
"""Types of parts that are no text of an answer: other models' reasoning, which no template takes."""
_PARTS = 'must be a text, or a list of parts such as {"type": "text", "text": "..."}'


def _text_of(part: Any) -> str | None:
    """Return the text of a part, which may be a text alone; None if it is none of the answer."""
    if not isinstance(part, dict):
        part = {"text": part}
    kind = "text" if part.get("type") is None else part["type"]
    if kind in _THOUGHTS:
        return None
    if isinstance(kind, str) and kind not in _TEXTS:
        found = {"kind": kind[:60]}
        raise PydanticCustomError("unsupported", "has a part of type {kind}, only text is supported", found)
    text = part.get(_TEXTS[kind]) if isinstance(kind, str) else None
    if not isinstance(text, str):
        raise ValueError(_PARTS)
    return text


def _joined_text(value: Any) -> str:
    """Return parts of text as the lines of one text; a text is left as it is."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError(_PARTS)
    return "\n".join(text for part in value if (text := _text_of(part)) is not None)


Text = Annotated[
    str,
    BeforeValidator(_joined_text, json_schema_input_type=str | list[str | TextPart | RefusalPart]),
    AtMost("items", "parts"),
]
"""A text, or a list of parts, which are its lines: in messages, items and predictions of all APIs alike."""


TemplateVariables = Annotated[dict[str, Any], AtMost(64, "variables")]
"""Additional variables of the chat template."""


class PredictionFields(RequestModel):
    """A text that the response is expected to resemble."""

    type: Literal["content"]
    content: Text


@with_fields_of(SamplingParams, http_type, only=("temperature", "top_p", "min_p"))
class SharedFields(RequestModel):
    """Fields that every body has whose response is generated.

    Attributes:
        model: Name of the model, as in `/v1/models`; by default the targets'.
        stream: Send the response as it is decided.
        stream_options: Options of the stream.
        top_k: 0 and -1 keep all tokens.
        seed: -1 draws one, as in vLLM. Other negative ones count as the unsigned number with the same bits.
        cache_salt: Cached prefixes and memories are shared only between requests with the same salt.
        timeout: Seconds after which the client no longer needs the response, at most one day.
        priority: Lower values run first, as in vLLM; 0 by default.
        service_tier: OpenAI's name of a priority: flex runs after all others, priority and fast before them.
        speculation: Speculation parameters.
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    top_k: Annotated[int, Field(ge=-1, le=_UINT32)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=_MASK64)] | None = None
    cache_salt: str | None = None
    timeout: Timeout | None = None
    priority: Priority | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    speculation: SpeculationFields | None = None

    @field_validator("stream_options")
    @classmethod
    def _has_a_stream(cls, options: StreamOptions | None, known: ValidationInfo) -> StreamOptions | None:
        asked = options is not None and any(dict(options).values())
        if asked and not known.data.get("stream", True):
            raise ValueError("must not be set without stream")
        return options


@with_fields_of(SamplingParams, http_type)
class GenerationFields(SharedFields, GrammarFields):
    """Fields that completions and chat share; those of `SamplingParams` and of grammars among them.

    Attributes:
        logit_bias: Added to the logits, by token id.
        prediction: Text that the response is expected to resemble, which makes it faster.
        verdicts: Return the verdict of every token, under `flyserve`.
        store: True has no effect, which a warning says: no response is kept.
    """

    max_tokens: Whole | None = None
    n: Whole | None = None
    stop: Strings | None = None
    logit_bias: Annotated[dict[str, float], AtMost("listed_tokens", "tokens")] | None = None
    prediction: PredictionFields | None = None
    verdicts: bool | None = None
    store: bool | None = None

    @property
    def idle_warnings(self) -> tuple[str, ...]:
        """Warnings about fields that have no effect."""
        return ("store has no effect: no response is kept",) if self.store else ()

    @field_validator("logit_bias")
    @classmethod
    def _has_token_ids(cls, bias: dict[str, float] | None) -> dict[str, float] | None:
        for token in bias or ():
            if not (token.isascii() and token.isdigit() and len(token) <= 10 and int(token) <= _UINT32):
                raise ValueError(f"names {token[:20]!r}, must have token ids as names")
        return bias

    def sampling(self, default: SamplingParams) -> SamplingParams:
        """Return the sampling parameters; fields that the request leaves open are those of `default`."""
        given = _given_fields(self, SamplingParams)
        if self.top_k is not None:
            given["top_k"] = max(0, self.top_k)
        if self.seed is not None:
            given["seed"] = None if self.seed == -1 else self.seed & _MASK64
        if self.logit_bias is not None:
            given["logit_bias"] = {int(token): bias for token, bias in self.logit_bias.items()}
        if "stop_token_ids" in given:
            given["stop_token_ids"] = tuple(given["stop_token_ids"])
        if given.get("temperature", default.temperature) == 0:
            # NOTE: filters of the model's config have no effect then, and the client did not ask for them.
            default = replace(default, top_k=0, top_p=1.0, min_p=0.0)
        return replace(default, **given)


def _given_fields(model: BaseModel, source: type) -> dict[str, Any]:
    """Return the fields of a dataclass that a body sets."""
    found = {each.name: getattr(model, each.name) for each in fields(source)}
    return {name: value for name, value in found.items() if value is not None}
