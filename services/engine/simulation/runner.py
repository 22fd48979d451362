"""The runner of a simulated model, with parametric latency: load studies without weights."""

from collections.abc import Sequence
from dataclasses import replace

from fly.messages import ModelInfo, Role
from fly.version import VERSION
from services.engine.base import Scores, Slot, Work
from services.engine.head.candidates import FewCandidates
from services.engine.head.sampler import Sampler, places, sampled_scores
from services.engine.memory.figures import MemoryFigures
from services.engine.memory.ledger import KvLedger
from services.engine.simulation.language import SimulatedConfig as SimulatedConfig
from services.engine.simulation.language import SimulatedLanguage


class SimulatedRunner(MemoryFigures):
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
        self._language = SimulatedLanguage(config)
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
        super().__init__(self._ledger)
        self._computed: dict[Slot, int] = {}

    def allocate(self, num_tokens: int) -> Slot | None:
        slot = self._ledger.allocate(num_tokens)
        if slot is not None:
            self._computed[slot] = 0
        return slot

    def resize(self, slot: Slot, num_tokens: int, start: int | None = None) -> bool:
        if num_tokens == 0:
            self._computed[slot] = 0
        return self._ledger.resize(slot, num_tokens)

    def copy_prefix(self, source: Slot, slot: Slot, num_tokens: int) -> bool:
        assert num_tokens <= self._computed[source], "positions that are shared were never computed"
        if not self._ledger.resize(slot, num_tokens):
            return False
        self._computed[slot] = num_tokens
        return True

    def retire(self, slot: Slot, num_tokens: int) -> None:
        self._ledger.retire(slot)

    def free(self, slot: Slot) -> None:
        del self._computed[slot]
        self._ledger.free(slot)

    def forward_s(self, batch: Sequence[Work]) -> float:
        return self.config.forward_s(len(batch), sum(len(work.tokens) for work in batch))

    def forward(self, batch: Sequence[Work]) -> list[Scores]:
        return [self._score(work) for work in batch]

    def _score(self, work: Work) -> Scores:
        """Answers for one sequence; a real model without KV before `start` would answer nonsense."""
        assert work.start <= self._computed[work.slot], "positions before the work were never computed"
        assert work.end <= self._ledger.reserved(work.slot), "the work exceeds its slot"
        self._computed[work.slot] = work.end
        positions = range(work.first_position, work.end + 1)
        entropies = tuple(self._language.entropy(work, position) for position in positions)
        if work.num_outputs and work.sampling.temperature > 0:
            scores = self._sampled(work, entropies)
        else:
            choices = tuple(self._language.choice(work, position) for position in positions)
            judged = zip(positions, work.drafts, strict=True)
            excluded = tuple(self._language.excludes(work, position, draft) for position, draft in judged)
            scores = Scores(choices, entropies, excluded)
        return replace(scores, logprobs=self._language.logprobs(work, scores.choices))

    def _sampled(self, work: Work, entropies: tuple[float, ...]) -> Scores:
        candidates = FewCandidates(*self._language.candidates(work))
        return sampled_scores(Sampler(candidates, list(places(work))).draw(), entropies)
