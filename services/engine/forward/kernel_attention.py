"""Attention of a whole batch by one launch of a kernel that reads the blocks of KV memory where they are."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from services.engine.forward.forward_batch import ForwardBatch
from services.engine.kernels.choice import PagedAttention
from services.engine.memory.paged_kv_cache import BlockTable


class KernelAttention:
    """Describes a forward to the kernel once, for all layers and windows."""

    def __init__(self, batch: ForwardBatch, tables: Sequence[BlockTable]) -> None:
        most_blocks = max(len(table) for table in tables)
        padded = np.stack([np.pad(table, (0, most_blocks - len(table))) for table in tables])
        contexts = np.array([rows.start for rows in batch.rows])
        starts = np.array([*(rows.offset for rows in batch.rows), batch.num_tokens])
        uploaded = batch.buffer.upload("kernel", [padded, contexts, starts])
        self._tables, self._contexts, self._starts = (part.int() for part in uploaded)

    def __call__(
        self,
        kernel: PagedAttention,
        queries: Tensor,
        memory: Tensor,
        scaling: float | None = None,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attend with a layer's queries, (rows, heads, dim), over its KV memory, (positions, 2, heads, dim).

        The keys and values of the new rows must be there. Returns (rows, heads, dim).
        """
        scale = queries.shape[-1] ** -0.5 if scaling is None else scaling
        keys, values = memory.unbind(1)
        return kernel(
            queries,
            keys,
            values,
            self._tables,
            self._contexts,
            self._starts,
            scale,
            window=window,
            softcap=softcap,
            sinks=sinks,
        )
