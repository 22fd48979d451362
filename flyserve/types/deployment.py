"""What a deployment says of itself and of a text."""

from dataclasses import dataclass, field

from flyserve.types.request import Speculation


@dataclass(frozen=True, slots=True)
class Model:
    """What a tier serves.

    Attributes:
        weight_fingerprint: Hash of the weights.
        context_length: Longest sequence in tokens; 0 is unlimited.
    """

    model_id: str
    weight_fingerprint: str
    architecture: str
    dtype: str
    vocab_size: int
    context_length: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may ask for, at most.

    Attributes:
        max_new_tokens: New tokens of a choice.
        draft_length: Draft tokens of a round.
        choices: Choices of a request.
        logprobs: Most likely tokens told at each position.
    """

    max_new_tokens: int = 0
    draft_length: int = 0
    choices: int = 0
    logprobs: int = 0


@dataclass(frozen=True, slots=True)
class Deployment:
    """What a deployment serves.

    Attributes:
        drafter: None where there is none at present.
        presets: Named rules that FLy may start from.
        default_preset: The one that it starts from where a request names none.
        version: FlyServe's.
        default: What a request gets that does not say otherwise.
        limits: What a request may ask for.
    """

    target: Model
    drafter: Model | None
    presets: tuple[str, ...]
    default_preset: str
    version: str
    default: Speculation = field(default_factory=Speculation)
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class Piece:
    """A token of tokenized text."""

    id: int
    text: str
