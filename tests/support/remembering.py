"""A runner with a real KV cache whose keys and values are the token ids, checked at every read."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from flyserve.core.blocks import BLOCK_TOKENS
from flyserve.core.messages import Role
from services.engine.base import ForwardInput, KvSlot, Scores
from services.engine.memory.kv_cache import ContiguousKvCache, KvCache
from services.engine.memory.paged_kv_cache import PagedKvCache
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner
from tests.support.kv_memory import store

NUM_LAYERS = 2


class RememberingRunner:
    """Scores as the simulated model does, and asserts that memory contains exactly the sequence's own tokens.

    Attributes:
        kv_cache: Its memory.
        num_rows: Token rows computed so far.
        copies: Prefixes that were shared: source, slot, tokens.
    """

    def __init__(self, config: SimulatedConfig, kv_cache: KvCache) -> None:
        self.kv_cache = kv_cache
        self.num_rows = 0
        self.copies: list[tuple[KvSlot, KvSlot, int]] = []
        # The model's own memory is never full; `kv_cache` is the memory under test.
        self._model = SimulatedRunner(config, Role.TARGET, 1, 1 << 20)
        self._slot = self._model.allocate(1 << 20)
        self.info = self._model.info

    def copy_prefix(self, source: KvSlot, slot: KvSlot, num_tokens: int) -> bool:
        copied = self.kv_cache.copy_prefix(source, slot, num_tokens)
        if copied:
            self.copies.append((source, slot, num_tokens))
        return copied

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kv_cache, name)

    def forward(self, batch: Sequence[ForwardInput]) -> list[Scores]:
        return [self._score(item) for item in batch]

    def answer(self, item: ForwardInput) -> Scores:
        """Return the scores of the model, without checking memory."""
        whole = ForwardInput(
            self._slot or 0,
            0,
            list(item.history),
            item.num_outputs,
            item.sampling,
            item.prompt_length,
            item.history,
            item.drafts,
        )
        return self._model.forward([whole])[0]

    def _score(self, item: ForwardInput) -> Scores:
        end = item.start + len(item.tokens)
        assert list(item.tokens) == list(item.history[item.start : end])
        self.kv_cache.clear_after(item.slot, end)
        for layer in range(NUM_LAYERS):
            keys, values = store(self.kv_cache, layer, item.slot, item.start, item.tokens, layer)
            past = torch.tensor(item.history[:end], dtype=torch.float32)
            assert torch.equal(keys[:end], past), "the memory is not the sequence's own past"
            assert torch.equal(values[:end], past + layer)
            assert len(keys) == self.kv_cache.padding.padded_keys(end) and not keys[end:].any()
        self.num_rows += len(item.tokens)
        return self.answer(item) if item.num_outputs else Scores((), (), ())

    def held(self, slots: Iterable[KvSlot]) -> int:
        """Return the token positions that the slots hold together."""
        if isinstance(self.kv_cache, ContiguousKvCache):
            return sum(self.kv_cache.reserved(slot) for slot in slots)
        assert isinstance(self.kv_cache, PagedKvCache)
        blocks = {block for slot in slots for block in self.kv_cache.table(slot)}
        return len(blocks) * BLOCK_TOKENS
