"""Triton kernels of the head: choice, largest logits, logsumexp and top-3 entropy of each row, in one pass.

Rows are divided into spans of fixed length, one program each, so that a few rows of a large vocabulary fill a
GPU. A second kernel merges the spans of a row. The results of a row do not depend on the other rows.
"""

import triton
import triton.language as tl

NO_ID = tl.constexpr(2**31 - 1)
"""Larger than every token id."""


@triton.jit
def merge_lanes(first, second, third, ids, sums, LANES: tl.constexpr):
    """Merge the three largest logits of each lane, with the id of the largest, and the sums of weights.

    A lane's sum is that of `exp(logit - first)`; NaN if it has seen a NaN. Returns the three largest, the
    lowest id of the largest, and the sum of `exp(logit - largest)`.
    """
    largest = tl.max(first, 0)
    choice = tl.min(tl.where(first == largest, ids, NO_ID), 0)
    total = tl.sum(tl.where(sums == 0.0, 0.0, sums * tl.exp(first - largest)), 0)

    lanes = tl.arange(0, LANES)
    is_taken = lanes == tl.min(tl.where(first == largest, lanes, LANES), 0)
    first = tl.where(is_taken, second, first)
    second = tl.where(is_taken, third, second)
    middle = tl.max(first, 0)
    is_taken = lanes == tl.min(tl.where(first == middle, lanes, LANES), 0)
    least = tl.max(tl.where(is_taken, second, first), 0)
    return largest, middle, least, choice, total


@triton.jit
def span_kernel(
    logits,
    rows,
    values,
    ids,
    vocab_size,
    width,
    row_stride,
    HAS_ROWS: tl.constexpr,
    SPAN: tl.constexpr,
    LANES: tl.constexpr,
):
    """Compute a span of a row, program (row, span): three largest logits, sum of weights, id of the largest.

    `values` is (rows, spans, 4), float32, `ids` (rows, spans), int32. `rows` are the rows of the logits to
    compute, int64, if there are any. `width` is their length with padding, which is loaded too: it is a round
    number, which lets a thread load several logits at once.
    """
    row, span = tl.program_id(0), tl.program_id(1)
    source = tl.load(rows + row) if HAS_ROWS else row
    logits += tl.cast(source, tl.int64) * row_stride
    lanes = span * SPAN + tl.arange(0, LANES)
    first = tl.full((LANES,), float("-inf"), tl.float32)
    second = first
    third = first
    sums = tl.zeros((LANES,), tl.float32)
    best = lanes
    for block in tl.static_range(SPAN // LANES):
        index = lanes + block * LANES
        loaded = tl.load(logits + index, mask=index < width, other=float("-inf")).to(tl.float32)
        loaded = tl.where(index < vocab_size, loaded, float("-inf"))
        x = tl.where(loaded == loaded, loaded, float("-inf"))
        high = tl.maximum(first, x)
        low = tl.minimum(first, x)
        weight = tl.where(low == float("-inf"), 0.0, tl.exp(low - high))
        is_larger = x > first
        sums = tl.where(is_larger, sums * weight + 1.0, sums + weight)
        sums = tl.where(loaded == loaded, sums, float("nan"))
        best = tl.where(is_larger, index, best)
        third = tl.maximum(third, tl.minimum(second, low))
        second = tl.maximum(second, low)
        first = high
    largest, middle, least, choice, total = merge_lanes(first, second, third, best, sums, LANES)
    place = row * tl.num_programs(1) + span
    tl.store(ids + place, choice)
    tl.store(values + 4 * place, largest)
    tl.store(values + 4 * place + 1, middle)
    tl.store(values + 4 * place + 2, least)
    tl.store(values + 4 * place + 3, total)


@triton.jit
def entropy_term(log_p):
    """Return `-p ln p`; 0 for a probability of 0."""
    return tl.where(log_p == float("-inf"), 0.0, -tl.exp(log_p) * log_p)


@triton.jit
def row_kernel(values, ids, facts, num_spans, SPANS: tl.constexpr):
    """Merge the spans of a row, program (row,), into its facts, (rows, 6), float64.

    The facts are choice, three largest logits, logsumexp, top-3 entropy. `SPANS` is a power of 2, at least
    `num_spans`.
    """
    row = tl.program_id(0)
    lanes = tl.arange(0, SPANS)
    is_span = lanes < num_spans
    place = row * num_spans + lanes
    lowest = float("-inf")
    first = tl.load(values + 4 * place, mask=is_span, other=lowest)
    second = tl.load(values + 4 * place + 1, mask=is_span, other=lowest)
    third = tl.load(values + 4 * place + 2, mask=is_span, other=lowest)
    sums = tl.load(values + 4 * place + 3, mask=is_span, other=0.0)
    best = tl.load(ids + place, mask=is_span, other=NO_ID)
    largest, middle, least, choice, total = merge_lanes(first, second, third, best, sums, SPANS)
    log_total = tl.log(total)
    entropy = entropy_term(-log_total)
    entropy += entropy_term(middle - largest - log_total)
    entropy += entropy_term(least - largest - log_total)
    facts += 6 * row
    tl.store(facts, choice.to(tl.float64))
    # A NaN of the row is in the total.
    tl.store(facts + 1, tl.where(total == total, largest, total).to(tl.float64))
    tl.store(facts + 2, middle.to(tl.float64))
    tl.store(facts + 3, least.to(tl.float64))
    tl.store(facts + 4, (largest + log_total).to(tl.float64))
    tl.store(facts + 5, entropy.to(tl.float64))
