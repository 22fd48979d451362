"""The biases of sequences as tensors, kept from forward to forward."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.engine.base import ForwardInput, KvSlot

_MANY = 1 / 16
"""Share of the vocabulary from which on adding to all logits is faster than adding by index."""


@dataclass(frozen=True, slots=True)
class _Biases:
    """The biases of one request; without an `index` the values are those of all tokens, 0 by default."""

    given: Mapping[int, float]
    index: Tensor | None
    values: Tensor

    @classmethod
    def of(cls, given: Mapping[int, float], vocab_size: int, like: Tensor) -> "_Biases":
        # NOTE: numpy reads a mapping of 200,000 tokens in a tenth of torch's time.
        index = torch.from_numpy(np.fromiter(given, np.int64, len(given))).to(like.device)
        read = torch.from_numpy(np.fromiter(given.values(), np.float64, len(given)))
        values = read.to(like.device, like.dtype)
        if len(given) < _MANY * vocab_size:
            return cls(given, index, values)
        dense = torch.zeros(vocab_size, dtype=like.dtype, device=like.device)
        return cls(given, None, dense.index_copy_(0, index, values))


class LogitBiases:
    """The biases of all sequences with any; those of a sequence live until `forget`."""

    def __init__(self) -> None:
        self._kept: dict[KvSlot, _Biases] = {}

    def __len__(self) -> int:
        """Number of sequences whose biases are kept."""
        return len(self._kept)

    def add(self, logits: Tensor, item: ForwardInput) -> None:
        """Add the biases of a sequence to its logits, (rows, vocabulary), in place."""
        given, kept = item.sampling.logit_bias, self._kept.get(item.slot)
        if kept is None or kept.given is not given:
            kept = self._kept[item.slot] = _Biases.of(given, logits.shape[1], logits)
        if kept.index is None:
            logits += kept.values
        else:
            logits[:, kept.index] += kept.values

    def forget(self, slot: KvSlot) -> None:
        """Free the biases of a closed sequence."""
        self._kept.pop(slot, None)
