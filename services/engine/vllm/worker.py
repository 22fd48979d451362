"""Forwards on a worker of vLLM: its model runner executes plans that are made here, without its scheduler.

A plan says which tokens of which sequences are computed, from which position on. The hidden states of the
output rows are then turned into logits; vLLM samples nothing.
"""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flyserve.core.errors import describe
from services.engine.base import ForwardInput, KvSlot, RunnerLost, Scores
from services.engine.head.head import Head
from services.engine.loading.device import lost_with_device
from services.engine.memory.paged_kv_cache import Block
from services.engine.vllm.blocks import Blocks
from services.engine.vllm.hooks import Ids, hooks_of
from services.engine.vllm.steps import Layout, Row, Step

logger = logging.getLogger(__name__)

Table = tuple[Block, ...]


class Forward:
    """Computes steps on one worker; every rank computes the same steps in the same order."""

    def __init__(self, worker: Any) -> None:
        """Check vLLM's private names.

        Raises:
            RuntimeError: A name is missing.
        """
        from vllm.sampling_params import SamplingParams

        self._hooks = hooks_of(worker)
        self._worker, self._runner = worker, worker.model_runner
        self._most_tokens: int = worker.vllm_config.model_config.max_model_len
        self._blocks = Blocks(self._runner.kv_cache_config, worker.vllm_config)
        self._sampling = SamplingParams(temperature=0.0, max_tokens=1)
        self._tables: dict[KvSlot, Table] = {}
        self._ids: dict[KvSlot, Ids] = {}
        # NOTE: one of vLLM's runners would compute logits of other rows: the last of each sequence.
        model = self._runner.model
        self._compute_logits, model.compute_logits = model.compute_logits, _no_logits

    @torch.inference_mode()
    def __call__(self, step: Step) -> Tensor | None:
        """Return the logits of all output rows in the order of the step; None on a rank that has none."""
        plan = self._plan(step)
        self._runner.execute_model_state = None  # that of a step that failed
        self._worker.execute_model(plan)
        state, self._runner.execute_model_state = self._runner.execute_model_state, None
        if state is None or state.hidden_states is None:
            return None
        return self._logits(step.rows, state)

    def layout(self) -> Layout:
        """Return the layout of the KV memory."""
        return self._blocks.layout()

    def _plan(self, step: Step) -> Any:
        # NOTE: empty plans are filled, as by vLLM's own warm-up: its versions require different fields.
        from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy
        from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput

        for slot in step.closed:
            self._tables.pop(slot, None)
            self._ids.pop(slot, None)
        new, cached, fresh = list[Any](), CachedRequestData.make_empty(), list[int]()
        for row in step.rows:
            is_known = row.slot in self._tables
            before = self._tables.get(row.slot, ())
            table = self._tables[row.slot] = before if row.table is None else row.table
            # A sequence that is learnt again has blocks that are written.
            fresh += self._blocks.fresh(table[len(before) :] if before or not row.start else ())
            ids = self._write(row)
            if is_known:
                self._continue(cached, row, before, table)
                self._hooks.write(row, ids)
            else:
                new.append(self._new(row, table, ids))
        self._hooks.flush(bool(new))
        plan = SchedulerOutput.make_empty()
        plan.scheduled_new_reqs, plan.scheduled_cached_reqs = new, cached
        plan.num_scheduled_tokens = {row.name: len(row.tokens) for row in step.rows}
        plan.total_num_scheduled_tokens = sum(plan.num_scheduled_tokens.values())
        plan.finished_req_ids = {str(slot) for slot in step.closed}
        plan.new_block_ids_to_zero = fresh or None
        pairs = (zip(*map(self._blocks.numbers, copy), strict=True) for copy in step.copies)
        plan.kv_cache_block_copies = [KVCacheBlockCopy(*pair) for copy in pairs for pair in copy] or None
        return plan

    def _write(self, row: Row) -> Ids:
        """Write a row's tokens; return all token ids of the sequence up to them.

        Those before the first row are never read, so zeros stand for the tokens of a shared prefix.
        """
        ids = self._ids.get(row.slot)
        if ids is None:
            ids = self._ids[row.slot] = np.zeros(self._most_tokens, dtype=np.int32)
        ids[row.start : row.end] = row.tokens
        return ids[: row.end]

    def _new(self, row: Row, table: Table, ids: Ids) -> Any:
        """Return the plan of a sequence that the runner learns; it forgets one of the same name."""
        from vllm.v1.core.sched.output import NewRequestData

        tokens = self._hooks.token_ids(ids)
        return NewRequestData(
            req_id=row.name,
            prompt_token_ids=tokens,
            prefill_token_ids=tokens,
            mm_features=[],
            sampling_params=self._sampling,
            pooling_params=None,
            block_ids=self._blocks.all_of(row.slot, table),
            num_computed_tokens=row.start,
            lora_request=None,
        )

    def _continue(self, cached: Any, row: Row, before: Table, table: Table) -> None:
        """Add a sequence that the runner knows to the plan, with the blocks that it gets."""
        blocks: tuple[list[int], ...] | None = None
        if table[: len(before)] != before:
            blocks = self._blocks.all_of(row.slot, table)
            if self._hooks.replaces(row.name, blocks):
                blocks = None
            else:
                cached.resumed_req_ids.add(row.name)
        elif len(table) > len(before):
            blocks = self._blocks.more(table[len(before) :])
        cached.req_ids.append(row.name)
        cached.new_block_ids.append(blocks)
        cached.num_computed_tokens.append(row.start)
        cached.num_output_tokens.append(0)

    def _logits(self, rows: Sequence[Row], state: Any) -> Tensor | None:
        places, offset = dict[str, int](), 0
        lengths = {row.name: len(row.tokens) for row in rows}
        for name in self._hooks.names_in_order(state):
            places[name], offset = offset, offset + lengths[name]
        ends = ((places[row.name] + len(row.tokens), row.num_outputs) for row in rows)
        index = [place for end, count in ends for place in range(end - count, end)]
        if not index:
            # NOTE: without logits nothing waits for this step, but vLLM has buffers for two of them only.
            self._worker.synchronize_device()
            return None
        hidden = state.hidden_states
        logits: Tensor | None = self._compute_logits(hidden[torch.tensor(index, device=hidden.device)])
        return logits


def _no_logits(hidden_states: Tensor, *_: Any) -> Tensor:
    """Return rows without logits."""
    return hidden_states[:, :0]


class StepWorker:
    """Methods that vLLM adds to its worker (`worker_extension_cls`), called through `collective_rpc`."""

    def flyserve_start(self, vocab_size: int) -> Layout:
        """Prepare steps, and scores of a vocabulary; return the layout of the KV memory."""
        self._flyserve_forward = Forward(self)
        self._flyserve_head = Head(vocab_size)
        return self._flyserve_forward.layout()

    def flyserve_scores(
        self: Any, step: Step, items: Sequence[ForwardInput], rank: int
    ) -> list[Scores] | str:
        """Compute a step and, on the worker of this rank, score its rows on its device.

        An error of the head is returned as text: an exception would end the replica, but all workers have
        computed the step and can go on.
        """
        logits = self._flyserve_forward(step)
        if self.rank != rank:
            return []
        try:
            with lost_with_device():
                rows = torch.empty(0, 0) if logits is None else logits
                scores: list[Scores] = self._flyserve_head(rows, items)
        except RunnerLost:
            raise
        except Exception as error:
            logger.exception("the head failed")
            return describe(error)
        return scores

    def flyserve_step(self, step: Step, to_cpu: bool) -> Tensor | None:
        """Compute a step; see `Forward`. Logits for another process go through the memory of the CPU."""
        logits = self._flyserve_forward(step)
        return logits.cpu() if to_cpu and logits is not None else logits
