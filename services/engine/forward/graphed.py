"""The layers of a forward as CUDA graphs: the host starts one graph in place of hundreds of kernels."""

import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from flyserve.core.errors import describe
from services.engine.forward.forward_batch import NO_CAP, Cap, ForwardBatch
from services.engine.forward.fused import FusedForward
from services.engine.forward.residual import make_residual
from services.engine.forward.shape import AttentionShape
from services.engine.forward.varlen_attention import KeyGroup, PackedBatch, VarlenAttention, pack_batch
from services.engine.memory.kv_cache import KvCache
from services.engine.memory.paged_kv_cache import PagedKvCache

logger = logging.getLogger(__name__)

_MOST_ROWS = 256
"""Rows from which on a GPU takes longer than the host: forwards of more are started kernel by kernel."""
_FEWEST_KEYS = 1024
_MOST_KEYS = 65_536

Capture = Callable[[Callable[[], Tensor]], tuple[Tensor, Callable[[], Tensor]]]
"""Runs some work once and captures it; returns the result, and what repeats the work."""


class _Size(NamedTuple):
    """The numbers that a graph computes, powers of two: rows, which are also its sequences, and keys."""

    rows: int
    keys: int


class GraphedForward:
    """A fused forward over memory in blocks that replays one CUDA graph for all layers.

    A graph is captured when a batch of its size first comes, and compared with the same work done kernel by
    kernel. A batch is padded to its graph: by rows of the spare block, and by sequences without rows.
    """

    def __init__(
        self, forward: FusedForward, kv_cache: PagedKvCache, device: torch.device, capture: Capture
    ) -> None:
        self.kv_cache: KvCache = kv_cache
        self._forward = forward
        self._memory = kv_cache
        self._capture: Capture | None = capture
        self._graphs: dict[_Size, Callable[[], Tensor]] = {}
        indices = partial(torch.zeros, dtype=torch.long, device=device)
        ends = partial(torch.zeros, _MOST_ROWS + 1, dtype=torch.int32, device=device)
        self._ids, self._positions, self._written = (indices(_MOST_ROWS) for _ in range(3))
        self._keys, self._query_ends, self._key_ends = indices(_MOST_KEYS), ends(), ends()

    def __call__(self, batch: ForwardBatch) -> Tensor:
        """Return the logits of the output rows, (outputs, embedding rows)."""
        size = _size_of(batch)
        if size is None or self._capture is None:
            return self._forward(batch)
        self._fill(size, batch)
        if size not in self._graphs:
            self._add(size, batch, self._capture)
            return self(batch)
        rows = self._graphs[size]()
        return self._forward.head(make_residual(rows[: batch.num_tokens]), batch)

    def attend(
        self, batch: ForwardBatch, projected: Tensor, shape: AttentionShape, cap: Cap = NO_CAP
    ) -> Tensor:
        """As `Forward`."""
        return self._forward.attend(batch, projected, shape, cap)

    def _fill(self, size: _Size, batch: ForwardBatch) -> None:
        """Write a batch, padded to this size, where graphs read it."""
        written, (group,) = pack_batch(batch, self._memory)
        keys = len(group.keys)
        for place, length, values, padding in (
            (self._ids, size.rows, batch.ids, 0),
            (self._positions, size.rows, batch.positions, 0),
            (self._written, size.rows, written, self._memory.spare_row),
            (self._keys, size.keys, group.keys, self._memory.spare_row),
            (self._query_ends, size.rows + 1, group.query_ends, batch.num_tokens),
            (self._key_ends, size.rows + 1, group.key_ends, keys),
        ):
            place[: len(values)].copy_(values)
            place[len(values) : length].fill_(padding)

    def _add(self, size: _Size, batch: ForwardBatch, capture: Capture) -> None:
        """Capture a graph; stop using any if that fails, or if the graph computes something else."""
        try:
            result, replay = capture(partial(self._layers, size, batch))
            expected = result[: batch.num_tokens].clone()
            is_equal = torch.equal(_bits(replay()[: batch.num_tokens]), _bits(expected))
        except RuntimeError as error:
            fault = describe(error)
        else:
            fault = "" if is_equal else "its result differs"
            self._graphs[size] = replay
        if fault:
            logger.warning("CUDA graphs are not used: that of %s rows and %s keys: %s", *size, fault)
            self._capture = None
            self._graphs.clear()

    def _layers(self, size: _Size, batch: ForwardBatch) -> Tensor:
        """Compute the batch that was filled in; of `batch` itself nothing is read."""
        rows, keys = size
        ends = self._query_ends[: rows + 1], self._key_ends[: rows + 1]
        group = KeyGroup(slice(0, rows), self._keys[:keys], *ends, rows, keys)
        packed = PackedBatch(self._written[:rows], [group])
        attend = VarlenAttention(batch, self._memory, packed=packed)
        rotated = self._forward.rotated(self._positions[:rows], attend)
        return self._forward.layers(self._ids[:rows], rotated).rows


def _size_of(batch: ForwardBatch) -> _Size | None:
    """Return the size of the graph for a batch; None if there is none."""
    rows, keys = batch.num_tokens, sum(each.end for each in batch.rows)
    if not 0 < rows <= _MOST_ROWS or keys > _MOST_KEYS:
        return None
    return _Size(_power_of_two(rows), max(_FEWEST_KEYS, _power_of_two(keys)))


def _bits(rows: Tensor) -> Tensor:
    """Return the bytes of some rows: those of a result that is not a number are equal, too."""
    return rows.contiguous().view(torch.uint8)


def _power_of_two(number: int) -> int:
    """Return the smallest power of two that is not less."""
    return 1 << (number - 1).bit_length()


class CudaGraphs:
    """Captures work into graphs that share their memory: one of them runs at a time."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], Tensor]]:
        """Run some work on the current GPU and capture it; as `Capture`."""
        current, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):  # libraries take the memory that they keep before a capture
                result = run()
            # NOTE: other threads of this process may call CUDA meanwhile, as for the masks of grammars.
            with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                captured = run()
        finally:
            torch.cuda.set_stream(current)  # a capture that fails leaves its own stream current
            current.wait_stream(self._stream)

        def replay() -> Tensor:
            graph.replay()
            return captured

        return result, replay
