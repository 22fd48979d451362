"""The scorer of real models: the head on the logits of any runner."""

from collections.abc import Sequence

import torch

from services.engine.base import (
    DelegatedMemoryStats,
    ForwardInput,
    KvSlot,
    Runner,
    Scores,
    ScoringRunner,
)
from services.engine.head.head import Head
from services.engine.head.logits_processors import needs_processing
from services.engine.loading.device import lost_with_device


class HeadScorer(DelegatedMemoryStats):
    """A `Scorer`: a runner computes logits, and the head turns them into scores on the same device.

    Where the logits are in another process, a head there does so, unless rows need masks or counts.
    """

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner)
        self.info = runner.info
        self.allocate, self.resize, self.copy_prefix = runner.allocate, runner.resize, runner.copy_prefix
        self._runner = runner
        self._remote = runner if isinstance(runner, ScoringRunner) else None
        self._head = Head(runner.info.vocab_size)

    def retire(self, slot: KvSlot, num_tokens: int) -> None:
        self._head.forget(slot)
        self._runner.retire(slot, num_tokens)

    def free(self, slot: KvSlot) -> None:
        self._head.forget(slot)
        self._runner.free(slot)

    @torch.inference_mode()
    def forward(self, batch: Sequence[ForwardInput]) -> list[Scores]:
        if (found := self._scored_elsewhere(batch)) is not None:
            return found
        self._head.start(batch)
        logits = self._runner.logits(batch)
        with lost_with_device():
            return self._head(logits, batch)

    def _scored_elsewhere(self, batch: Sequence[ForwardInput]) -> list[Scores] | None:
        """Score a batch where its logits are; None if they are here, or the head here changes them."""
        if self._remote is None or any(map(needs_processing, batch)):
            return None
        return self._remote.scores(batch)
