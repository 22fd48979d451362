"""Draws the tokens of a batch whose sequences sample, from the whole vocabulary."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fly.noise import BLOCK
from services.engine.base import Work
from services.engine.head.candidates import DenseCandidates
from services.engine.head.sampler import Drawn, Sampler, places


def sample(logits: Tensor, batch: Sequence[Work], spans: Sequence[slice]) -> dict[int, list[Drawn]]:
    """What each sampling work of the batch draws, by the work's index.

    Args:
        logits: Of all output rows, processed, float32.
        batch: Whose they are.
        spans: Which rows are a work's.
    """
    sampling = [
        index for index, work in enumerate(batch) if work.num_outputs and work.sampling.temperature > 0
    ]
    if not sampling:
        return {}
    rows = np.concatenate([np.arange(spans[index].start, spans[index].stop) for index in sampling])
    maxima = torch.cat([block_maxima(logits[spans[index]]) for index in sampling])
    candidates = DenseCandidates(logits.cpu().numpy(), rows, maxima.cpu().numpy())
    drawn = iter(Sampler(candidates, [place for index in sampling for place in places(batch[index])]).draw())
    return {index: [next(drawn) for _ in range(batch[index].num_outputs)] for index in sampling}


def block_maxima(logits: Tensor) -> Tensor:
    """(rows, blocks) the largest of each `BLOCK` logits of (rows, vocabulary)."""
    num_rows, vocabulary = logits.shape
    num_whole = vocabulary // BLOCK
    whole = logits[:, : num_whole * BLOCK].reshape(num_rows, num_whole, BLOCK).amax(-1)
    if vocabulary % BLOCK == 0:
        return whole
    return torch.cat([whole, logits[:, num_whole * BLOCK :].amax(-1, keepdim=True)], dim=1)
