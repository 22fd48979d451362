"""A request that is checked and complete, its deadline, and the seeds of its choices."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from flyserve.core.clock import Clock
from flyserve.core.errors import DeadlineExceeded
from flyserve.core.limits import MOST_TIMEOUT_S
from flyserve.core.request import ReceivedChoice, RequestParams, SamplingParams
from flyserve.core.sequence import TokenSequence
from flyserve.core.types import Coupling, Mode
from router.policies.request_key import RequestKey
from router.requests.grammars import CompiledGrammar
from router.requests.planning import SpeculationPlan
from router.tools.message import MessageFormat


class Deadline:
    """A point on a clock, or never."""

    def __init__(self, clock: Clock, timeout_s: float | None) -> None:
        """Set the deadline `timeout_s` from now, or one day from now if that is earlier; None is never."""
        self._clock = clock
        self._at = None if timeout_s is None else clock.now() + min(timeout_s, MOST_TIMEOUT_S)

    def remaining_s(self) -> float | None:
        """Return the seconds left, None without a deadline; raise DeadlineExceeded if it has passed."""
        if self._at is None:
            return None
        remaining_s = self._at - self._clock.now()
        if remaining_s <= 0:
            raise DeadlineExceeded("the request's deadline has passed")
        return remaining_s

    def remaining_ms(self) -> int:
        """Return the milliseconds left, at least 1, or 0 without a deadline; raises as `remaining_s`."""
        remaining_s = self.remaining_s()
        return 0 if remaining_s is None else max(1, int(remaining_s * 1000))


SEED_BITS = 64

_MASK = (1 << SEED_BITS) - 1
_GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest(RequestParams):
    """A request that breaks no limit, with nothing left open.

    Attributes:
        prompt: The prompt; its choices copy it.
        sampling: Sampling parameters with all stop token ids and a seed.
        prediction: Tokens that the response is expected to resemble; none without a prediction.
        grammar: Constraint on the response; None is none.
        warnings: Warnings about the request.
        weight_fingerprint: Fingerprint of the weights that decode it; "" accepts any.
        resumed: Choices of which the client has received a part.
        key: Key of the prompt and its cache salt, for balancing.
        streams: False if the client gets its response as a whole.
        message_format: Format of its messages, whose parts are to be found; None if all text is content.
    """

    prompt: TokenSequence = field(compare=False)
    max_new_tokens: int
    sampling: SamplingParams
    plan: SpeculationPlan
    prediction: tuple[int, ...] = ()
    grammar: CompiledGrammar | None = field(default=None, compare=False)
    warnings: tuple[str, ...] = ()
    weight_fingerprint: str = ""
    resumed: tuple[ReceivedChoice, ...] = ()
    key: RequestKey = ()
    streams: bool = True
    message_format: MessageFormat | None = field(default=None, compare=False)

    @property
    def prompt_ids(self) -> Sequence[int]:
        """Token ids of the prompt."""
        return self.prompt.ids

    @property
    def seed(self) -> int:
        """Seed of the sampling noise."""
        return self.sampling.seed or 0

    @property
    def needs_distributions(self) -> bool:
        """True if a draft is verified together with the distributions that it was drawn from."""
        return self.sampling.temperature > 0 and self.sampling.coupling is Coupling.REJECTION

    def needed_tokens(self, open_ended: int) -> int:
        """Return the length of the sequence for which a replica must have room.

        It has all tokens of a choice, or `open_ended` new ones if the client set no number.
        """
        more = min(self.max_new_tokens, len(self.received_ids) + open_ended)
        return len(self.prompt_ids) + (more if self.fills_context else self.max_new_tokens)

    @property
    def needs_entropies(self) -> bool:
        """True if the rule, or a client that asks for log-probabilities, uses the target's entropies."""
        return self.plan.mode in (Mode.EXACT, Mode.FLY) or self.logprobs is not None

    @property
    def needs_gaps(self) -> bool:
        """True if the rule limits the gap of a rescued token, or the client asks for the gaps."""
        return self.plan.rule.max_logprob_gap is not None or self.evidence

    def choices(self) -> tuple["PreparedRequest", ...]:
        """Return one request per choice, each with its own seed and id; the first is the request itself."""
        return (self, *(self._choice(index) for index in range(1, self.n)))

    def unfinished(self) -> dict[int, "PreparedRequest"]:
        """Return the choices that are not finished, by index, each with its received part."""
        if self.n == 1 and not self.resumed:
            return {0: self}
        received = {choice.index: choice for choice in self.resumed}
        return {
            index: replace(choice, resumed=(received[index],)) if index in received else choice
            for index, choice in enumerate(replace(self, resumed=()).choices())
            if index not in received or not received[index].is_finished
        }

    @property
    def received_ids(self) -> tuple[int, ...]:
        """Tokens of one unfinished choice that the client has received."""
        return self.resumed[0].token_ids if self.resumed else ()

    @property
    def received_kernels(self) -> str:
        """Kernels that have computed the received tokens of one unfinished choice; "" if they are unknown."""
        return self.resumed[0].kernels if self.resumed else ""

    def _choice(self, index: int) -> "PreparedRequest":
        sampling = replace(self.sampling, seed=choice_seed(self.seed, index))
        return replace(self, sampling=sampling, request_id=f"{self.request_id}#{index}")


def draw_seed() -> int:
    """Return a random seed."""
    return random.getrandbits(SEED_BITS)


def choice_seed(seed: int, index: int) -> int:
    """Return the seed of one choice: the request's own for the first, a hash of it for the others.

    It is number `index` of the splitmix64 generator that starts at `seed`, so no two choices of a request
    share a seed.
    """
    if index == 0:
        return seed
    mixed = (seed + index * _GOLDEN) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)
