"""Attention of a ragged batch over a paged KV cache by Triton, in one launch, or two if contexts are split.

The split of long contexts over programs is that of FlashDecoding (Dao et al., 2023).
"""

from functools import lru_cache

import torch
from torch import Tensor

from fly.blocks import BLOCK_TOKENS
from gpu_kernels.attention_kernels import merge_kernel, tile_kernel

_FEWEST_QUERIES, _MOST_QUERIES = 16, 64
"""Queries of a small and of a large tile; tensor cores multiply 16 rows at least.

Triton compiles the kernel for each size of a tile, number of splits and bound of the sequences, which are
few, and for no other number that varies from batch to batch.
"""
_QUERY_BYTES, _KEY_BYTES = 32768, 16384
"""Memory of a tile's queries, and of the keys that it reads at once: every GPU has 99 KB for a program."""
_SPLIT_POSITIONS = 256
"""Positions of a split, at least."""
SPLITS = (16, 4, 1)
"""Programs that may share a context."""
_PROGRAMS_PER_PROCESSOR = 2
_FEWEST_SEQUENCES = 64
"""Sequences that one compiled kernel serves, at least; above, powers of two."""


def paged_attention(
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
    """Return the attention of all rows over the KV of their sequences, (rows, heads, dim).

    The KV of the new rows is stored already. Row i of a sequence with context c is at position c + i and sees
    the positions up to its own. Scores, weights and sums are float32. Nothing is read back to the host: the
    launches follow from the shapes of the arguments. Rows after the last of `starts` have no result.

    Args:
        query: (rows, heads, dim), float32, bfloat16 or float16; rows and heads may lie apart.
        keys: (positions, KV heads, dim), of the query's type; positions and heads may lie apart. For a layer
            of `PagedKvCache`, whose memory is (positions, 2, KV heads, dim), they are `memory[:, 0]`.
        values: Shaped as `keys`: `memory[:, 1]`.
        tables: Blocks of each sequence, (sequences, most blocks), int32; the rest of a row is not read.
        contexts: Positions of each sequence before its rows, (sequences,), int32.
        starts: First row of each sequence, and the number of rows, (sequences + 1,), int32.
        scale: Factor of the scores.
        window: Positions that a row sees, including its own; None for all.
        softcap: Bound of the scores by tanh; None for none.
        sinks: Scores of a virtual position without a value, (heads,); None for none.
        splits: Programs that share a context, one of `SPLITS`; None chooses by the number of processors.
    """
    num_rows, heads, dim = query.shape
    kv_heads, num_sequences = keys.shape[1], len(contexts)
    assert query.stride(2) == keys.stride(2) == values.stride(2) == 1, "a head must be contiguous"
    assert tables.stride(1) == 1 and starts.is_contiguous() and contexts.is_contiguous()
    output = torch.empty(num_rows, heads, dim, dtype=query.dtype, device=query.device)
    if not num_rows:
        return output
    group, padded_dim = heads // kv_heads, max(16, _power_of_two(dim))
    dim_bytes = padded_dim * query.element_size()
    queries = tile_queries(num_rows, num_sequences, group, dim_bytes)
    num_tiles = num_rows // (queries // group) + num_sequences
    if splits is None:
        splits = _num_splits(num_tiles * kv_heads, tables.shape[1] * BLOCK_TOKENS, query.device)
    parts, weights = output, None
    if splits > 1:
        parts = torch.empty(splits, num_rows, heads, dim, dtype=torch.float32, device=query.device)
        weights = torch.empty(splits, num_rows, heads, dtype=torch.float32, device=query.device)
    tile_kernel[(num_tiles, kv_heads, splits)](
        query,
        keys,
        values,
        tables,
        contexts,
        starts,
        sinks,
        parts,
        weights,
        num_sequences,
        num_rows,
        scale,
        window or 0,
        softcap or 0.0,
        query.stride(0),
        query.stride(1),
        keys.stride(0),
        keys.stride(1),
        values.stride(0),
        values.stride(1),
        tables.stride(0),
        HAS_WINDOW=window is not None,
        HAS_CAP=softcap is not None,
        HAS_SINKS=sinks is not None,
        GROUP=group,
        DIM=dim,
        PADDED_DIM=padded_dim,
        BLOCK_TOKENS=BLOCK_TOKENS,
        QUERIES=queries,
        POSITIONS=tile_positions(dim_bytes),
        SEQUENCES=max(_FEWEST_SEQUENCES, _power_of_two(num_sequences)),
        SPLITS=splits,
        num_warps=4,
        num_stages=2,
    )
    if splits > 1:
        merge_kernel[(num_rows * heads,)](
            parts,
            weights,
            output,
            num_rows * heads,
            DIM=dim,
            PADDED_DIM=padded_dim,
            SPLITS=splits,
            num_warps=4,
        )
    return output


def tile_positions(dim_bytes: int) -> int:
    """Return the positions that a tile reads at once; `dim_bytes` are those of a padded head."""
    return max(16, min(64, _KEY_BYTES // dim_bytes))


def tile_queries(num_rows: int, num_sequences: int, group: int, dim_bytes: int) -> int:
    """Return the queries of a tile: few if those of a sequence are few on average, but all heads of a row."""
    is_small = num_rows * group <= _FEWEST_QUERIES * num_sequences
    most = _FEWEST_QUERIES if is_small else min(_MOST_QUERIES, _QUERY_BYTES // dim_bytes)
    return max(_power_of_two(group), most)


def _num_splits(num_programs: int, most_positions: int, device: torch.device) -> int:
    """Return the programs that share a context, so that few sequences with a long one fill the GPU."""
    wanted = _PROGRAMS_PER_PROCESSOR * _num_processors(device) // num_programs
    most = max(1, min(wanted, most_positions // _SPLIT_POSITIONS))
    return next(splits for splits in SPLITS if splits <= most)


@lru_cache
def _num_processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _power_of_two(number: int) -> int:
    """Return the smallest power of two that is not below a number."""
    return 1 << (number - 1).bit_length()
