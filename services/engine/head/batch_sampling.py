"""Sample the tokens of a batch from the whole vocabulary."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fly.noise import BLOCK
from services.engine.base import ForwardInput
from services.engine.head.candidates import DenseCandidates
from services.engine.head.sampler import DrawnToken, Sampler, sample_requests


def sample(
    logits: Tensor, batch: Sequence[ForwardInput], spans: Sequence[slice]
) -> dict[int, list[DrawnToken]]:
    """Draw the tokens of every input with a temperature above 0; return them by the input's index.

    Args:
        logits: Logits of all output rows, processed, float32.
        batch: Inputs of these rows.
        spans: Rows of each input.
    """
    sampling = [
        index for index, item in enumerate(batch) if item.num_outputs and item.sampling.temperature > 0
    ]
    if not sampling:
        return {}
    rows = np.concatenate([np.arange(spans[index].start, spans[index].stop) for index in sampling])
    maxima = torch.cat([block_maxima(logits[spans[index]]) for index in sampling])
    candidates = DenseCandidates(logits.cpu().numpy(), rows, maxima.cpu().numpy())
    drawn = iter(
        Sampler(
            candidates, [request for index in sampling for request in sample_requests(batch[index])]
        ).draw()
    )
    return {index: [next(drawn) for _ in range(batch[index].num_outputs)] for index in sampling}


def block_maxima(logits: Tensor) -> Tensor:
    """Return the largest of each `BLOCK` logits of (rows, vocabulary), (rows, blocks)."""
    num_rows, vocabulary = logits.shape
    num_whole = vocabulary // BLOCK
    whole = logits[:, : num_whole * BLOCK].reshape(num_rows, num_whole, BLOCK).amax(-1)
    if vocabulary % BLOCK == 0:
        return whole
    return torch.cat([whole, logits[:, num_whole * BLOCK :].amax(-1, keepdim=True)], dim=1)
