"""What a client asks for, as it asks, and what becomes of it once it is checked and completed."""

from dataclasses import dataclass, field, replace
from typing import Any

from fly.types import Coupling, DraftLengthPolicy, FlyRule, Mode, SamplingParams
from router.policies.request_key import RequestKey
from router.requests.seeds import choice_seed

RULE_FIELDS = (
    "window",
    "threshold",
    "tail",
    "carry_after",
    "guard_stops",
    "guard_excluded",
    "strict_prefix_tokens",
    "entropy",
)
"""Parameters of speculation that change the rule; a `FlyRule` has them by the same names."""


@dataclass(frozen=True, slots=True)
class SpeculationParams:
    """How a client wants its request to speculate; "" and None take the server's default.

    Attributes:
        mode: Name of a `Mode`; anything else is for the validation to reject.
        preset: Named rule that `fly` starts from.
        draft_length: Draft tokens per round; at most, where the policy is `goodput`.
        sub_drafter: Whether the drafter may use its sub-drafter.
        window: Draft positions after a mismatch that must match.
        threshold: Entropy below which a mismatch is rejected.
        tail: Name of a `Tail`.
        carry_after: Following matches that must have been seen before a window is carried.
        guard_stops: Whether ends of the response are guarded.
        guard_excluded: Whether what the filters exclude is guarded.
        strict_prefix_tokens: The first tokens of a response are exact.
        entropy: Name of an `EntropyEstimator`.
        draft_length_policy: Name of a `DraftLengthPolicy`; "" is `fixed` where `draft_length` is given.
    """

    mode: str = ""
    preset: str = ""
    draft_length: int | None = None
    sub_drafter: bool | None = None
    window: int | None = None
    threshold: float | None = None
    tail: str = ""
    carry_after: int | None = None
    guard_stops: bool | None = None
    guard_excluded: bool | None = None
    strict_prefix_tokens: int | None = None
    entropy: str = ""
    draft_length_policy: str = ""

    @property
    def changes(self) -> dict[str, Any]:
        """What the client says of the rule itself."""
        said = {name: getattr(self, name) for name in RULE_FIELDS}
        return {name: value for name, value in said.items() if value not in (None, "")}


@dataclass(frozen=True, slots=True)
class ReceivedChoice:
    """What a client has of one choice of a response whose stream broke."""

    index: int
    token_ids: tuple[int, ...]
    is_finished: bool = False


@dataclass(frozen=True, slots=True)
class Resumption:
    """What a client has of a response whose stream broke.

    Attributes:
        choices: Those of which something was received.
        weight_fingerprint: Of the weights that began it; "" takes any.
    """

    choices: tuple[ReceivedChoice, ...]
    weight_fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One prompt and how to continue it, as the client says it; nothing is checked yet.

    Attributes:
        prompt: Text, or token ids.
        max_new_tokens: None takes the server's default.
        sampling: Its stop token ids are the client's own; its seed does not count.
        seed: Of the sampling noise; None lets the router draw one.
        stop: The response ends before the first of these strings.
        n: Choices.
        logprobs: Most likely tokens told per position; None tells no log-probabilities.
        resume: What there is of the response already.
    """

    prompt: str | tuple[int, ...]
    request_id: str = ""
    max_new_tokens: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    speculation: SpeculationParams = field(default_factory=SpeculationParams)
    priority: int = 0
    cache_salt: str = ""
    n: int = 1
    logprobs: int | None = None
    resume: Resumption | None = None

    @property
    def prompt_field(self) -> str:
        """Name of the field that holds the prompt."""
        return "prompt" if isinstance(self.prompt, str) else "prompt_token_ids"


@dataclass(frozen=True, slots=True)
class SpeculationPlan:
    """How one response is decoded.

    Attributes:
        draft_length: Draft tokens per round, at most; 0 drafts nothing.
        sub_drafter: Whether the drafter may use its sub-drafter.
        draft_length_policy: Who says how long each draft is.
    """

    mode: Mode
    rule: FlyRule
    draft_length: int
    sub_drafter: bool
    draft_length_policy: DraftLengthPolicy = DraftLengthPolicy.FIXED

    @property
    def drafts(self) -> bool:
        """Whether a drafter takes part."""
        return self.mode is not Mode.PLAIN and self.draft_length > 0

    @property
    def end_at_stop(self) -> bool:
        """Whether a draft may end behind a stop token: no window looks beyond it."""
        return self.rule.guard_stops


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that breaks no limit, with nothing left open.

    Attributes:
        sampling: Stop token ids and seed are complete.
        warnings: What the client should know of the request.
        n: Choices.
        logprobs: Most likely tokens told per position; None tells no log-probabilities.
        weight_fingerprint: Of the targets that it was checked for; "" where any will do.
        resumed: Choices that the client has a part of.
        key: Of the prompt under its cache salt, for balancing.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    sampling: SamplingParams
    stop: tuple[str, ...]
    plan: SpeculationPlan
    priority: int
    cache_salt: str
    warnings: tuple[str, ...] = ()
    n: int = 1
    logprobs: int | None = None
    weight_fingerprint: str = ""
    resumed: tuple[ReceivedChoice, ...] = ()
    key: RequestKey = ()

    @property
    def needs_distributions(self) -> bool:
        """Whether a draft is verified together with what it was drawn from."""
        return self.sampling.temperature > 0 and self.sampling.coupling is Coupling.REJECTION

    def choices(self) -> tuple["PreparedRequest", ...]:
        """One request for each choice, with a seed and an id of its own; of one choice the request itself."""
        return (self, *(self._choice(index) for index in range(1, self.n)))

    def unfinished(self) -> dict[int, "PreparedRequest"]:
        """The choices that are to be made, by index; each has what was received of it."""
        received = {choice.index: choice for choice in self.resumed}
        return {
            index: replace(choice, resumed=(received[index],)) if index in received else choice
            for index, choice in enumerate(replace(self, resumed=()).choices())
            if index not in received or not received[index].is_finished
        }

    @property
    def received_ids(self) -> tuple[int, ...]:
        """Of one unfinished choice: the tokens that the client has of it."""
        return self.resumed[0].token_ids if self.resumed else ()

    def _choice(self, index: int) -> "PreparedRequest":
        sampling = replace(self.sampling, seed=choice_seed(self.sampling.seed, index))
        return replace(self, sampling=sampling, request_id=f"{self.request_id}#{index}")
