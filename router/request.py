"""What a client asks for, as it asks, and what becomes of it once it is checked and completed."""

from dataclasses import dataclass, field

from fly.types import FlyRule, Mode, SamplingParams


@dataclass(frozen=True, slots=True)
class SpeculationParams:
    """How a client wants its request to speculate; "" and None take the server's default.

    Attributes:
        mode: Name of a `Mode`; anything else is for the validation to refuse.
        preset: Named rule that `fly` starts from.
        draft_length: Draft tokens per round.
        window: Draft positions after a mismatch that must match.
        threshold: Entropy below which a mismatch is refused.
        sub_drafter: Whether the drafter may use its sub-drafter.
    """

    mode: str = ""
    preset: str = ""
    draft_length: int | None = None
    window: int | None = None
    threshold: float | None = None
    sub_drafter: bool | None = None


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One prompt and how to continue it, as the client says it; nothing is checked yet.

    Attributes:
        prompt: Text, or token ids.
        max_new_tokens: None takes the server's default.
        sampling: Its stop token ids are the client's own; its seed does not count.
        seed: Of the sampling noise; None lets the router draw one.
        stop: The response ends before the first of these strings.
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

    @property
    def prompt_field(self) -> str:
        """Name of the field that holds the prompt."""
        return "prompt" if isinstance(self.prompt, str) else "prompt_token_ids"


@dataclass(frozen=True, slots=True)
class SpeculationPlan:
    """How one response is decoded.

    Attributes:
        draft_length: Draft tokens per round; 0 drafts nothing.
        sub_drafter: Whether the drafter may use its sub-drafter.
    """

    mode: Mode
    rule: FlyRule
    draft_length: int
    sub_drafter: bool

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
