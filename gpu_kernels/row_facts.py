"""The greedy head by Triton: what an output row needs, from its logits as they are, in two launches."""

import torch
from torch import Tensor

from gpu_kernels.head_kernels import row_kernel, span_kernel

CHOICE = 0
"""Column of the choice: the first id of the largest logit."""
LARGEST = slice(1, 4)
"""Columns of the three largest logits, in descending order; the first is NaN in a row with NaN or +inf."""
TOTAL = 4
"""Column of the logsumexp."""
ENTROPY = 5
"""Column of the top-3 entropy in nats: `-sum p ln p` over the three largest probabilities."""

_SPAN = 8192
"""Logits of one program: 16 rows of 128k logits are 256 programs."""
_LANES = 1024
"""Logits that a program loads at once."""


def row_facts(logits: Tensor, vocab_size: int, rows: Tensor | None = None) -> Tensor:
    """Return the facts of output rows, (rows, 6), float64: columns `CHOICE`, `LARGEST`, `TOTAL`, `ENTROPY`.

    They are of one type, so that one copy brings all of them to the host. Logits are computed in float32.

    Args:
        logits: (any, embedding rows), float32, bfloat16 or float16; rows may lie apart.
        vocab_size: Logits of a row that count; the others are padding.
        rows: Rows of `logits` to compute, int64; all by default.
    """
    assert logits.stride(1) == 1, "the logits of a row must be contiguous"
    num_rows, num_spans = len(logits if rows is None else rows), -(-vocab_size // _SPAN)
    values = torch.empty(num_rows, num_spans, 4, dtype=torch.float32, device=logits.device)
    ids = torch.empty(num_rows, num_spans, dtype=torch.int32, device=logits.device)
    facts = torch.empty(num_rows, 6, dtype=torch.float64, device=logits.device)
    if not num_rows:
        return facts
    span_kernel[(num_rows, num_spans)](
        logits,
        rows,
        values,
        ids,
        vocab_size,
        logits.shape[1],
        logits.stride(0),
        HAS_ROWS=rows is not None,
        SPAN=_SPAN,
        LANES=_LANES,
        num_warps=4,
    )
    spans = 1 << (num_spans - 1).bit_length()
    row_kernel[(num_rows,)](values, ids, facts, num_spans, SPANS=spans, num_warps=1)
    return facts
