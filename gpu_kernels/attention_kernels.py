"""Triton kernels of paged attention: a tile of a sequence's rows, and the merge of a context's splits."""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
NO_TILE = tl.constexpr(2**31 - 1)
"""Larger than every number of a tile."""


@triton.jit
def capped(scores, cap):
    """Return `cap * tanh(scores / cap)`."""
    return cap - 2.0 * cap / (tl.exp(2.0 * scores / cap) + 1.0)


@triton.jit(do_not_specialize=["num_sequences", "num_rows", "window", "table_stride"])
def tile_kernel(
    query,
    keys,
    values,
    tables,
    contexts,
    starts,
    sinks,
    output,
    weights,
    num_sequences,
    num_rows,
    scale,
    window,
    cap,
    query_stride,
    query_head_stride,
    key_stride,
    key_head_stride,
    value_stride,
    value_head_stride,
    table_stride,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    QUERIES: tl.constexpr,
    POSITIONS: tl.constexpr,
    SEQUENCES: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Attend from one tile of rows to one split of their context, program (tile, KV head, split).

    A tile has `QUERIES // GROUP` rows of one sequence, each with the `GROUP` heads that share a KV head.
    Tile numbers of sequence s begin at `starts[s] // rows of a tile + s`, which leaves each sequence at least
    as many numbers as it has tiles; a program whose number has no tile returns at once.

    With one split, writes the output (rows, heads, dim). With several, writes the output of each split,
    (splits, rows, heads, dim), float32, and the logarithm to base 2 of the sum of its weights,
    (splits, rows, heads).
    """
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    TILE_ROWS: tl.constexpr = QUERIES // GROUP

    numbers = tl.arange(0, SEQUENCES)
    is_sequence = numbers < num_sequences
    tiles = tl.load(starts + numbers, mask=is_sequence, other=0) // TILE_ROWS + numbers
    sequence = tl.sum((tl.where(is_sequence, tiles, NO_TILE) <= tile).to(tl.int32), 0) - 1
    start = tl.load(starts + sequence)
    length = tl.load(starts + sequence + 1) - start
    first = (tile - start // TILE_ROWS - sequence) * TILE_ROWS
    if first >= length:
        return

    places = tl.arange(0, QUERIES)
    rows = first + places // GROUP
    heads = kv_head * GROUP + places % GROUP
    is_query = (places < TILE_ROWS * GROUP) & (rows < length)
    dims = tl.arange(0, PADDED_DIM)
    is_dim = dims < DIM
    offsets = (start + rows).to(tl.int64) * query_stride + heads * query_head_stride
    queries = tl.load(
        query + offsets[:, None] + dims[None, :], mask=is_query[:, None] & is_dim[None, :], other=0.0
    )

    context = tl.load(contexts + sequence)
    own = context + rows
    low = 0
    high = context + tl.minimum(first + TILE_ROWS, length)
    if HAS_WINDOW:
        low = tl.maximum(0, context + first - window + 1) // POSITIONS * POSITIONS
    if SPLITS > 1:
        share = tl.cdiv(tl.cdiv(high - low, SPLITS), POSITIONS) * POSITIONS
        low += split * share
        high = tl.minimum(high, low + share)

    peak = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    if HAS_SINKS:
        # The first split alone counts it.
        sink = tl.load(sinks + heads, mask=is_query, other=0.0).to(tl.float32) * LOG2_E
        peak = tl.where(split == 0, sink, peak)
        total = tl.where(split == 0, 1.0, total)
    attended = tl.zeros((QUERIES, PADDED_DIM), tl.float32)
    for position in range(low, high, POSITIONS):
        positions = position + tl.arange(0, POSITIONS)
        is_stored = positions < high
        block = tl.load(tables + sequence * table_stride + positions // BLOCK_TOKENS, mask=is_stored, other=0)
        stored = block.to(tl.int64) * BLOCK_TOKENS + positions % BLOCK_TOKENS
        key = tl.load(
            keys + kv_head * key_head_stride + stored[None, :] * key_stride + dims[:, None],
            mask=is_stored[None, :] & is_dim[:, None],
            other=0.0,
        )
        scores = tl.dot(queries, key, input_precision="ieee") * scale
        if HAS_CAP:
            scores = capped(scores, cap)
        is_seen = is_stored[None, :] & (positions[None, :] <= own[:, None])
        if HAS_WINDOW:
            is_seen = is_seen & (positions[None, :] > own[:, None] - window)
        scores = tl.where(is_seen, scores * LOG2_E, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        # A row that sees no position yet has no peak: its weights are 0, not NaN.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp2(scores - base[:, None])
        kept = tl.exp2(peak - base)
        total = total * kept + tl.sum(weight, 1)
        value = tl.load(
            values + kv_head * value_head_stride + stored[:, None] * value_stride + dims[None, :],
            mask=is_stored[:, None] & is_dim[None, :],
            other=0.0,
        )
        attended = attended * kept[:, None]
        attended += tl.dot(weight.to(value.dtype), value, input_precision="ieee")
        peak = higher

    num_heads = tl.num_programs(1) * GROUP
    written = (split * num_rows + start + rows).to(tl.int64) * num_heads + heads
    attended = attended / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(
        output + written[:, None] * DIM + dims[None, :],
        attended.to(output.dtype.element_ty),
        mask=is_query[:, None] & is_dim[None, :],
    )
    if SPLITS > 1:
        tl.store(weights + written, peak + tl.log2(total), mask=is_query)


@triton.jit(do_not_specialize=["num_places"])
def merge_kernel(
    parts,
    weights,
    output,
    num_places,
    DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Merge the splits of one row and head, program (row x heads + head,), into the output."""
    place = tl.program_id(0).to(tl.int64)
    splits = tl.arange(0, SPLITS)
    dims = tl.arange(0, PADDED_DIM)
    is_dim = dims < DIM
    logs = tl.load(weights + splits * num_places + place)
    shares = tl.exp2(logs - tl.max(logs, 0))
    offsets = (splits * num_places + place)[:, None] * DIM + dims[None, :]
    attended = tl.load(parts + offsets, mask=is_dim[None, :], other=0.0)
    merged = tl.sum(attended * shares[:, None], 0) / tl.sum(shares, 0)
    tl.store(output + place * DIM + dims, merged.to(output.dtype.element_ty), mask=is_dim)
