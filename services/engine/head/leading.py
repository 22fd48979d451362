"""The largest logits of each row, found by the largest of each block."""

import torch
from torch import Tensor

from flyserve.core.noise import BLOCK

_SMALL = 32
"""Blocks of a vocabulary that is searched as a whole: faster than two steps."""


def leading_logits(blocks: Tensor, maxima: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest logits of each row, in descending order, and their ids: both (rows, count).

    `blocks` are (rows, blocks, BLOCK), `maxima` the largest of each block. The `count` largest logits lie in
    the `count` blocks with the largest maxima: a logit in another block has at least `count` logits, those
    maxima, that are no smaller. Among equal logits at the end, the ids that are returned are arbitrary.
    """
    num_rows, num_blocks, _ = blocks.shape
    count = min(count, num_blocks * BLOCK)
    if num_blocks <= _SMALL or 4 * count >= num_blocks:
        values, ids = blocks.flatten(1).topk(count, dim=-1)
        return values, ids
    chosen = maxima.topk(count, dim=-1, sorted=False).indices
    values, places = (
        blocks[torch.arange(num_rows, device=blocks.device)[:, None], chosen].flatten(1).topk(count, dim=-1)
    )
    return values, chosen.gather(1, places // BLOCK) * BLOCK + places % BLOCK


def argmax(blocks: Tensor, maxima: Tensor) -> Tensor:
    """Return the id of the largest logit of each row, the first of equal ones."""
    if blocks.shape[1] <= _SMALL:
        return blocks.flatten(1).argmax(-1)
    chosen = maxima.argmax(-1)
    within = blocks[torch.arange(len(blocks), device=blocks.device), chosen].argmax(-1)
    return chosen * BLOCK + within
