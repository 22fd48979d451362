"""Checks of the kernels: small batches that are compared with plain torch before a kernel is used."""

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fly.blocks import BLOCK_TOKENS
from fly.errors import ModelError
from gpu_kernels.plain import plain_attention, plain_row_facts

_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
"""Largest difference of attention from plain torch in float32; the values are of about 1."""
_FACT_TOLERANCE = 1e-4
_BATCHES = (((0, 50), (37, 1), (150, 9)), ((37, 1), (150, 1)))
"""Context and rows of each sequence of the checks: prefills, and decoding."""

_WINDOW = 40
"""Positions of the window in the checks."""


class RowFacts(Protocol):
    """The greedy head of a kernel, `gpu_kernels.row_facts.row_facts`."""

    def __call__(self, logits: Tensor, vocab_size: int, rows: Tensor | None = None) -> Tensor:
        """Return the facts of output rows."""


class AttentionKind(NamedTuple):
    """Attention that a kernel is compiled for: the shape of its heads, and its parts."""

    heads: int
    kv_heads: int
    dim: int
    has_window: bool = False
    softcap: float | None = None
    has_sinks: bool = False


class PagedAttention(Protocol):
    """Attention by a kernel, `gpu_kernels.paged_attention.paged_attention`."""

    def __call__(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        tables: Tensor,
        contexts: Tensor,
        starts: Tensor,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        splits: int | None = None,
    ) -> Tensor:
        """Return the attention of a ragged batch over a paged KV cache."""


@cache
@torch.inference_mode()
def checked_row_facts(device: torch.device) -> RowFacts:
    """Return the kernel of the greedy head after a comparison: ties, excluded tokens, padding, several spans.

    Raises:
        ModelError: Its results differ from those of torch.
    """
    from gpu_kernels.row_facts import row_facts

    drawn = torch.randn(4, 20_064, generator=torch.Generator().manual_seed(1)) * 4
    drawn[0, [17, 12_345]] = 30.0
    drawn[1, 3:] = -torch.inf
    for dtype in (torch.float32, torch.bfloat16):
        logits = drawn.to(dtype)
        expected = plain_row_facts(logits.double(), 20_051)
        computed = row_facts(logits.to(device), 20_051).cpu()
        _check_close(computed, expected, _FACT_TOLERANCE)
        if not torch.equal(computed[:, 0], expected[:, 0]):
            raise ModelError("its choices differ from torch's")
    return row_facts


@cache
@torch.inference_mode()
def checked_paged_attention(device: torch.device, dtype: torch.dtype, kind: AttentionKind) -> PagedAttention:
    """Return the kernel of attention after a comparison, which also compiles what small batches need.

    Raises:
        ModelError: Its results differ from those of torch.
    """
    from gpu_kernels.paged_attention import SPLITS, paged_attention

    heads, kv_heads, dim, has_window, softcap, has_sinks = kind
    scale, window = dim**-0.5, _WINDOW if has_window else None
    sinks = torch.linspace(-1, 1, heads) if has_sinks else None
    sinks_there = None if sinks is None else sinks.to(device, dtype)
    for sequences in _BATCHES:
        (query, keys, values), places = _batch(sequences, heads, kv_heads, dim)
        query, keys, values = query.to(dtype), keys.to(dtype), values.to(dtype)
        expected = plain_attention(
            query.float(), keys.float(), values.float(), *places, scale, window, softcap, sinks
        )
        query, keys, values = query.to(device), keys.to(device), values.to(device)
        tables, contexts, starts = (place.to(device) for place in places)
        for splits in SPLITS:
            computed = paged_attention(
                query, keys, values, tables, contexts, starts, scale, window, softcap, sinks_there, splits
            )
            _check_close(computed.float().cpu(), expected, _TOLERANCE[dtype])
    return paged_attention


def _batch(
    sequences: Sequence[tuple[int, int]], heads: int, kv_heads: int, dim: int
) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]:
    """Return query, keys, values, and tables, contexts, starts of random sequences: (context, rows) each."""
    generator = torch.Generator().manual_seed(1)
    most_blocks = max(-(-(context + rows) // BLOCK_TOKENS) for context, rows in sequences)
    tables = torch.randperm(len(sequences) * most_blocks, generator=generator).int().view(len(sequences), -1)
    keys, values = torch.randn(2, tables.numel() * BLOCK_TOKENS, kv_heads, dim, generator=generator)
    contexts = torch.tensor([context for context, _ in sequences], dtype=torch.int32)
    starts = torch.tensor([0, *accumulate(rows for _, rows in sequences)], dtype=torch.int32)
    query = torch.randn(int(starts[-1]), heads, dim, generator=generator)
    return (query, keys, values), (tables, contexts, starts)


def _check_close(computed: Tensor, expected: Tensor, tolerance: float) -> None:
    """Raise `ModelError` unless numbers are equal up to a tolerance; infinite ones must be equal."""
    is_close = computed.isclose(expected, rtol=tolerance, atol=tolerance)
    if not bool(is_close.all()):
        raise ModelError(f"{int((~is_close).sum())} of {is_close.numel()} results differ from torch's")
