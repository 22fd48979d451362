"""The residual stream of the fused forward, and its RMS norms."""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

_SIGNS = torch.tensor([[[1.0]], [[-1.0]]])


class RmsNorm:
    """The weight of an RMS norm.

    Attributes:
        width: Shape of a row, for `F.rms_norm`.
        doubled: The weight twice, (2, width), for `DoubledResidual`.
    """

    __slots__ = ("doubled", "eps", "weight", "width")

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps
        self.width = (len(weight),)
        self.doubled = torch.stack([weight, weight])


class Residual(Protocol):
    """The rows that every layer reads, normalised, and adds to."""

    @property
    def rows(self) -> Tensor:
        """The rows, (rows, width)."""

    def add(self, rows: Tensor) -> None:
        """Add to the rows."""

    def normalized(self, norm: RmsNorm) -> Tensor:
        """Return the RMS norm of the rows, times its weight."""


def make_residual(rows: Tensor) -> Residual:
    """Make a stream of these rows, which it may change.

    On a CPU it does not depend on the number of rows, so that a row's norm has the same bits in any batch.
    """
    return DoubledResidual(rows) if rows.device.type == "cpu" else PlainResidual(rows)


class PlainResidual:
    """The rows as they are."""

    __slots__ = ("rows",)

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def add(self, rows: Tensor) -> None:
        self.rows.add_(rows)

    def normalized(self, norm: RmsNorm) -> Tensor:
        return F.rms_norm(self.rows, norm.width, norm.weight, norm.eps)


class DoubledResidual:
    """Each row x as `[x, -x]`, which makes its RMS norm one operator where PyTorch's own needs eight.

    `[x, -x]` has mean 0 and the mean square of x as its variance, so the first half of its layer norm is the
    RMS norm of x. Adding to both halves is one operator too, and rounds them alike.
    """

    __slots__ = ("_doubled", "_halves", "_signs")

    def __init__(self, rows: Tensor) -> None:
        self._signs = _SIGNS.to(rows.dtype)
        self._doubled = rows.unsqueeze(1) * self._signs.squeeze(1)
        self._halves = self._doubled.transpose(0, 1)

    @property
    def rows(self) -> Tensor:
        return self._halves[0]

    def add(self, rows: Tensor) -> None:
        self._halves.addcmul_(self._signs, rows)

    def normalized(self, norm: RmsNorm) -> Tensor:
        shape = norm.doubled.shape
        return torch.layer_norm(self._doubled, shape, norm.doubled, None, norm.eps).select(1, 0)
