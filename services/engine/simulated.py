"""A deterministic language model made of hashes, with parametric latency: load studies without weights."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from fly.messages import ModelInfo, Role
from fly.types import EntropyEstimator
from fly.version import VERSION
from services.engine.base import Scores, Slot, Work
from services.engine.ledger import KvLedger

_MASK = (1 << 64) - 1
_UNIT = 1.0 / (1 << 64)
_CHOICE, _DEVIATION, _OTHER, _DOUBT, _ENTROPY, _LENGTH = range(1, 7)
"""Domains of the hash: what a number is drawn for."""


@dataclass(frozen=True, slots=True)
class SimulatedConfig:
    """A simulated model; a target and its drafter share all but `agreement` and the costs.

    Attributes:
        seed: Of the language; models of one seed speak the same.
        agreement: Probability per position of the choice that a model with agreement 1 takes.
        order: Tokens of the past that a choice depends on.
        first_word: Token ids below are special and never chosen, but for `end_id`.
        end_id: Ends every response.
        response_tokens: Shortest and longest response, both inclusive, before the end.
        uncertain_share: Share of positions with an entropy of 0.6 to 1.1 nats; others lie below 0.05.
        base_s: Seconds of a forward whatever its size.
        per_token_s: Seconds per token row up to `knee_tokens`.
        knee_tokens: Rows from which a forward is bound by compute.
        per_token_above_s: Seconds per token row above the knee.
        per_sequence_s: Seconds per sequence in the batch.
    """

    seed: int = 0
    vocab_size: int = 1024
    context_length: int = 4096
    agreement: float = 1.0
    order: int = 3
    first_word: int = 16
    end_id: int = 2
    response_tokens: tuple[int, int] = (64, 256)
    uncertain_share: float = 0.3
    base_s: float = 0.002
    per_token_s: float = 0.00002
    knee_tokens: int = 64
    per_token_above_s: float = 0.0001
    per_sequence_s: float = 0.0

    @property
    def fingerprint(self) -> str:
        """Hash of all that the answers depend on."""
        answers = {key: value for key, value in asdict(self).items() if not key.endswith("_s")}
        answers.pop("knee_tokens")
        return hashlib.blake2b(repr(sorted(answers.items())).encode(), digest_size=16).hexdigest()

    @property
    def token_map_hash(self) -> str:
        """Models of one vocabulary size have one token map."""
        return hashlib.blake2b(f"simulated:{self.vocab_size}".encode(), digest_size=16).hexdigest()

    def forward_s(self, num_sequences: int, num_tokens: int) -> float:
        """Seconds of a forward."""
        above = max(0, num_tokens - self.knee_tokens)
        rows_s = (num_tokens - above) * self.per_token_s + above * self.per_token_above_s
        return self.base_s + rows_s + num_sequences * self.per_sequence_s


class SimulatedRunner:
    """A `CostedRunner` of a simulated model; a sequence costs it one number."""

    def __init__(
        self,
        config: SimulatedConfig,
        role: Role,
        max_sequences: int,
        kv_tokens: int,
        model_id: str = "simulated",
    ) -> None:
        self.config = config
        self.info = ModelInfo(
            role=role,
            model_id=model_id,
            weight_fingerprint=config.fingerprint,
            architecture="simulated",
            token_map_hash=config.token_map_hash,
            vocab_size=config.vocab_size,
            context_length=config.context_length,
            dtype="float32",
            shards=1,
            kv_capacity=kv_tokens,
            version=VERSION,
        )
        self._ledger = KvLedger(kv_tokens, max_sequences)
        self._computed: dict[Slot, int] = {}

    @property
    def kv_capacity(self) -> int:
        return self._ledger.kv_capacity

    @property
    def kv_used(self) -> int:
        return self._ledger.kv_used

    def allocate(self, num_tokens: int) -> Slot | None:
        slot = self._ledger.allocate(num_tokens)
        if slot is not None:
            self._computed[slot] = 0
        return slot

    def resize(self, slot: Slot, num_tokens: int) -> bool:
        if num_tokens == 0:
            self._computed[slot] = 0
        return self._ledger.resize(slot, num_tokens)

    def free(self, slot: Slot) -> None:
        del self._computed[slot]
        self._ledger.free(slot)

    def forward_s(self, batch: Sequence[Work]) -> float:
        return self.config.forward_s(len(batch), sum(len(work.tokens) for work in batch))

    def forward(self, batch: Sequence[Work]) -> list[Scores]:
        return [self._score(work) for work in batch]

    def _score(self, work: Work) -> Scores:
        """Answers for one sequence; a real model without KV before `start` would answer nonsense."""
        end = work.start + len(work.tokens)
        assert work.start <= self._computed[work.slot], "positions before the work were never computed"
        assert end <= self._ledger.reserved(work.slot), "the work exceeds its slot"
        self._computed[work.slot] = end
        positions = range(end - work.num_outputs + 1, end + 1)
        excluded = (self._excludes(work, p, draft) for p, draft in zip(positions, work.drafts, strict=True))
        return Scores(
            choices=tuple(self._choice(work, position) for position in positions),
            entropies=tuple(self._entropy(work, position) for position in positions),
            excluded=tuple(excluded),
        )

    def _choice(self, work: Work, position: int) -> int:
        """The token at `position`, given those before it."""
        context = self._context(work, position)
        if self._ends(work, position):
            return self.config.end_id
        choice = self._word(context, _CHOICE)
        if self.config.agreement < 1.0 and _unit(context, _DEVIATION) >= self.config.agreement:
            return self._word(context, _OTHER)
        return choice

    def _entropy(self, work: Work, position: int) -> float:
        context = self._context(work, position)
        is_uncertain = _unit(context, _DOUBT) < self.config.uncertain_share
        drawn = _unit(context, _ENTROPY)
        nats = 0.6 + 0.5 * drawn if is_uncertain else 0.05 * drawn
        return (
            nats / math.log(self.config.vocab_size) if work.entropy is EntropyEstimator.NORMALIZED else nats
        )

    def _ends(self, work: Work, position: int) -> bool:
        """A response ends after a length drawn from its prompt, but not where its sampling forbids."""
        response_length = position - work.prompt_length
        if work.sampling.ignore_eos or response_length < work.sampling.min_tokens:
            return False
        shortest, longest = self.config.response_tokens
        if response_length < shortest:
            return False
        prompt = self._context(work, work.prompt_length)
        return response_length >= shortest + _mix(prompt, _LENGTH) % (longest - shortest + 1)

    def _excludes(self, work: Work, position: int, draft: int) -> bool:
        return (
            draft in work.sampling.stop_token_ids and position - work.prompt_length < work.sampling.min_tokens
        )

    def _context(self, work: Work, position: int) -> int:
        """Hash of what the distribution at `position` depends on."""
        state = _mix(self.config.seed, position)
        for token in work.history[max(0, position - self.config.order) : position]:
            state = _mix(state, token)
        return state

    def _word(self, context: int, domain: int) -> int:
        return self.config.first_word + _mix(context, domain) % (
            self.config.vocab_size - self.config.first_word
        )


def _mix(state: int, value: int) -> int:
    """One step of a 64-bit hash (the finalizer of splitmix64)."""
    mixed = (state + (value + 1) * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)


def _unit(context: int, domain: int) -> float:
    return _mix(context, domain) * _UNIT
