"""The runner of a simulated model with parametric latency, for load tests without weights."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from flyserve.core.messages import VERIFIED_TOKENS, ForwardCosts, ModelInfo, Role
from flyserve.core.version import VERSION
from services.engine.base import ForwardInput, KvSlot, Scores
from services.engine.head.candidates import FewCandidates
from services.engine.head.sampler import Sampler, sample_requests, sampled_scores
from services.engine.memory.slot_allocator import SlotAllocator
from services.engine.simulation.language import SimulatedConfig as SimulatedConfig
from services.engine.simulation.language import SimulatedLanguage


class SimulatedRunner(SlotAllocator):
    """A `TimedScorer` of a simulated model; its KV memory is one number per sequence."""

    def __init__(
        self,
        config: SimulatedConfig,
        role: Role,
        max_sequences: int,
        kv_tokens: int,
        model_id: str = "simulated",
    ) -> None:
        super().__init__(kv_tokens, max_sequences)
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
            max_sequences=max_sequences,
            costs=ForwardCosts(config.forward_s(1, 1), config.forward_s(1, VERIFIED_TOKENS)),
            row_invariant=True,
            kernels="simulated",
        )
        self._computed: Counter[KvSlot] = Counter()

    def resize(self, slot: KvSlot, num_tokens: int, start: int | None = None) -> bool:
        if num_tokens == 0:
            self._computed[slot] = 0
        return super().resize(slot, num_tokens)

    def copy_prefix(self, source: KvSlot, slot: KvSlot, num_tokens: int) -> bool:
        assert num_tokens <= self._computed[source], "shared positions were never computed"
        if not self.resize(slot, num_tokens):
            return False
        self._computed[slot] = num_tokens
        return True

    def free(self, slot: KvSlot) -> None:
        del self._computed[slot]
        super().free(slot)

    def forward_s(self, batch: Sequence[ForwardInput]) -> float:
        return self.config.forward_s(len(batch), sum(len(item.tokens) for item in batch))

    def forward(self, batch: Sequence[ForwardInput]) -> list[Scores]:
        return [self._score(item) for item in batch]

    def _score(self, item: ForwardInput) -> Scores:
        """Score one sequence; assert that the KV before `start`, which a real model needs, was computed."""
        assert item.start <= self._computed[item.slot], "positions before the input were never computed"
        assert item.end <= self.reserved(item.slot), "the input exceeds its slot"
        self._computed[item.slot] = item.end
        positions = range(item.first_position, item.end + 1)
        entropies = tuple(self._language.entropy(item, position) for position in positions)
        if item.num_outputs and item.sampling.temperature > 0:
            scores = self._sampled(item, entropies)
        else:
            choices = tuple(self._language.choice(item, position) for position in positions)
            judged = zip(positions, item.drafts, strict=True)
            excluded = tuple(self._language.excludes(item, position, draft) for position, draft in judged)
            scores = Scores(choices, entropies, excluded)
        logprobs = self._language.logprobs(item, scores.choices, item.num_logprobs)
        return replace(scores, logprobs=logprobs, gaps=self._language.gaps(item, scores.choices))

    def _sampled(self, item: ForwardInput, entropies: tuple[float, ...]) -> Scores:
        candidates = FewCandidates(*self._language.candidates(item), [item.sampling] * item.num_outputs)
        return sampled_scores(Sampler(candidates, list(sample_requests(item))).draw(), entropies)
