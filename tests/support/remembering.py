"""A runner over a real arena whose keys and values are the token ids themselves, checked at every read."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from fly.blocks import BLOCK_TOKENS
from fly.messages import Role
from services.engine.base import Scores, Slot, Work
from services.engine.memory.arena import ContiguousArena, KvArena
from services.engine.memory.paged_arena import PagedArena
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner

NUM_LAYERS = 2


class RememberingRunner:
    """Answers as the simulated model does, but only where memory holds exactly the sequence's own past.

    Attributes:
        arena: Its memory.
        num_rows: Token rows computed so far.
        copies: Prefixes that were shared: source, slot, tokens.
    """

    def __init__(self, config: SimulatedConfig, arena: KvArena) -> None:
        self.arena = arena
        self.num_rows = 0
        self.copies: list[tuple[Slot, Slot, int]] = []
        # Its memory is never too small: what counts is the arena's.
        self._model = SimulatedRunner(config, Role.TARGET, 1, 1 << 20)
        self._slot = self._model.allocate(1 << 20)
        self.info = self._model.info

    def copy_prefix(self, source: Slot, slot: Slot, num_tokens: int) -> bool:
        copied = self.arena.copy_prefix(source, slot, num_tokens)
        if copied:
            self.copies.append((source, slot, num_tokens))
        return copied

    def __getattr__(self, name: str) -> Any:
        return getattr(self.arena, name)

    def forward(self, batch: Sequence[Work]) -> list[Scores]:
        return [self._score(work) for work in batch]

    def answer(self, work: Work) -> Scores:
        """What the model answers, memory apart."""
        whole = Work(
            self._slot or 0,
            0,
            list(work.history),
            work.num_outputs,
            work.sampling,
            work.prompt_length,
            work.history,
            work.drafts,
        )
        return self._model.forward([whole])[0]

    def _score(self, work: Work) -> Scores:
        end = work.start + len(work.tokens)
        assert list(work.tokens) == list(work.history[work.start : end])
        for layer in range(NUM_LAYERS):
            new = torch.tensor(work.tokens, dtype=torch.float32).view(1, -1, 1)
            keys, values = self.arena.store(layer, work.slot, work.start, new, new + layer)
            past = torch.tensor(work.history[:end], dtype=torch.float32)
            assert torch.equal(keys.flatten(), past), "the memory is not the sequence's own past"
            assert torch.equal(values.flatten(), past + layer)
        self.num_rows += len(work.tokens)
        return self.answer(work) if work.num_outputs else Scores((), (), ())

    def held(self, slots: Iterable[Slot]) -> int:
        """Token positions that the slots hold together."""
        if isinstance(self.arena, ContiguousArena):
            return sum(self.arena._ledger.reserved(slot) for slot in slots)
        assert isinstance(self.arena, PagedArena)
        blocks = {block for slot in slots for block in self.arena._ledger.table(slot)}
        return len(blocks) * BLOCK_TOKENS
