"""The runner of vLLM: its workers compute, in blocks of its KV memory that the engine's allocator assigns."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from flyserve.core.messages import ModelInfo
from services.engine.base import DelegatedMemoryStats, ForwardInput, KvSlot, RunnerLost, Scores
from services.engine.division import divide
from services.engine.loading.device import lost_with_device
from services.engine.memory.paged_kv_cache import Block, BlockAllocator
from services.engine.vllm.steps import Layout, Row, Step
from services.engine.vllm.workers import Workers


class VllmRunner(DelegatedMemoryStats):
    """A `Runner` over started workers of vLLM, and its `Keepalive`.

    Attributes:
        batch_tokens: Most token rows of one step; a larger batch takes several.
    """

    def __init__(self, info: ModelInfo, workers: Workers, layout: Layout, batch_tokens: int) -> None:
        self._memory = BlockAllocator(
            layout.num_blocks * layout.block_tokens, info.max_sequences, self._copy_block, layout.block_tokens
        )
        super().__init__(self._memory)
        self.info = replace(info, kv_capacity=self.kv_capacity, plain_only=layout.plain_only)
        self.batch_tokens = batch_tokens
        self.allocate, self.resize = self._memory.allocate, self._memory.resize
        self.copy_prefix = self._memory.copy_prefix
        self._workers = workers
        self._copies: list[tuple[Block, Block]] = []
        self._closed: list[KvSlot] = []
        self._sent: dict[KvSlot, tuple[Block, ...]] = {}

    def retire(self, slot: KvSlot, num_tokens: int) -> None:
        self._close(slot)
        self._memory.retire(slot, num_tokens)

    def free(self, slot: KvSlot) -> None:
        self._close(slot)
        self._memory.free(slot)

    @torch.inference_mode()
    def logits(self, batch: Sequence[ForwardInput]) -> Tensor:
        with lost_with_device():
            parts = [self._step(part, self._workers.compute) for part in divide(batch, self.batch_tokens)]
            found = [logits for logits in parts if logits is not None]
            if not found:
                return torch.empty(0, self.info.vocab_size)
            return found[0] if len(found) == 1 else torch.cat(found)

    def scores(self, batch: Sequence[ForwardInput]) -> list[Scores] | None:
        if self._workers.is_inside or sum(len(item.tokens) for item in batch) > self.batch_tokens:
            return None
        # A head that changes no logits reads neither of these.
        items = [replace(item, history=(), blocks=()) for item in batch]
        found: list[Scores] | str = self._step(batch, lambda step: self._workers.score(step, items))
        if isinstance(found, str):
            raise RuntimeError(f"the head failed in a process of vLLM: {found}")
        return found

    def _step(self, inputs: Sequence[ForwardInput], compute: Callable[[Step], Any]) -> Any:
        rows = [
            Row(item.slot, item.start, item.tokens, item.num_outputs, self._changed(item.slot))
            for item in inputs
        ]
        step = Step(rows, tuple(self._closed), tuple(self._copies))
        try:
            found = compute(step)
        except RunnerLost:
            raise
        except Exception:
            # NOTE: the workers may know a part of the step, so they learn every sequence again.
            self._closed += self._sent
            self._sent.clear()
            raise
        self._closed, self._copies = [], []
        self._sent.update((row.slot, row.table) for row in rows if row.table is not None)
        return found

    def _changed(self, slot: KvSlot) -> tuple[Block, ...] | None:
        table = self._memory.table(slot)
        return None if self._sent.get(slot) is table else table

    def _close(self, slot: KvSlot) -> None:
        if self._sent.pop(slot, None) is not None:
            self._closed.append(slot)

    def _copy_block(self, source: Block, target: Block) -> None:
        # NOTE: all copies of a step are made at once, so a target may be no source of another one.
        self._copies = [copy for copy in self._copies if copy[1] != target]
        if any(copy[1] == source for copy in self._copies):
            self._workers.compute(Step(copies=tuple(self._copies)))
            self._copies = []
        self._copies.append((source, target))

    @property
    def idle_interval_s(self) -> float:
        return 1.0

    def on_idle(self) -> None:
        self._workers.check()

    def close(self) -> None:
        self._workers.close()
