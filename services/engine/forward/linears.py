"""Linear layers: plain, packed by oneDNN, packed by FBGEMM; each takes rows of shape (rows, in)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

MANY_ROWS = 16
"""Rows of a verification of 15 drafts."""
_FEW_ROWS = 3
"""Most rows that are multiplied faster by reading few bytes than with instructions for bfloat16."""
_SMALLEST_SCALE = 1e-6

Linear = Callable[[Tensor], Tensor]
MakeLinear = Callable[[Tensor], Linear]
"""Makes a linear from a weight, (out, in)."""


@dataclass(slots=True)
class PlainLinear:
    """`F.linear` without a module around it."""

    weight: Tensor

    def __call__(self, rows: Tensor) -> Tensor:
        return F.linear(rows, self.weight)


def relative_error(linear: Linear, weight: Tensor, rows_dtype: torch.dtype) -> float:
    """Return a linear's largest error, by the largest result in float32, for one random row and for many.

    It is not a number if a result is not.
    """
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(MANY_ROWS, weight.shape[1], generator=generator).to(rows_dtype)
    expected = F.linear(rows.float(), weight.float())
    errors = [(linear(rows[:number]).float() - expected[:number]).abs().max() for number in (1, MANY_ROWS)]
    return float(torch.stack(errors).max() / expected.abs().max().clamp(min=_SMALLEST_SCALE))


def in_padded_rows(multiply: Linear, rows: Tensor) -> Tensor:
    """Multiply up to 16 rows as they are, and more in multiples of 16.

    NOTE: oneDNN compiles and caches code for every number of rows, up to 150 MB.
    """
    num_rows = rows.shape[0]
    if num_rows > MANY_ROWS and num_rows % MANY_ROWS:
        return multiply(F.pad(rows, (0, 0, 0, -num_rows % MANY_ROWS)))[:num_rows]
    return multiply(rows)


class PackedLinear:
    """A weight in oneDNN's own layout; the unpacked one is not kept."""

    __slots__ = ("_packed", "_run")

    def __init__(self, weight: Tensor) -> None:
        # Private operators: compare the results with those of F.linear before use.
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, MANY_ROWS)
        self._run = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, rows: Tensor) -> Tensor:
        return in_padded_rows(self._multiply, rows)

    def _multiply(self, rows: Tensor) -> Tensor:
        result: Tensor = self._run(rows, self._packed, None, "none", [], "")
        return result


class HalfLinear:
    """A bfloat16 weight stored as float16, for float32 rows: FBGEMM widens the weight while multiplying.

    It reads half as many bytes as float32, and needs no bfloat16 instructions. float16 has more digits than
    bfloat16, but weights smaller than 6e-8 become 0, and those larger than 65504 overflow: compare the
    results with those of F.linear before use.
    """

    __slots__ = ("_packed", "_run")

    def __init__(self, weight: Tensor) -> None:
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight.float(), None)
        self._run = torch.ops.quantized.linear_dynamic_fp16.default

    def __call__(self, rows: Tensor) -> Tensor:
        result: Tensor = self._run(rows, self._packed)
        return result


class PairedLinear:
    """A weight stored twice, for bfloat16 rows: as float16 for a few of them, as bfloat16 for more.

    FBGEMM multiplies one row in the time of reading a weight, oneDNN many rows with bfloat16 instructions.
    These add the terms of a pair of inputs one by one, the second one first, as FBGEMM does if the inputs of
    each pair are exchanged. oneDNN adds the sums of blocks of inputs. So both give equal bits where `block`
    is that of this CPU: test it before use.
    """

    __slots__ = ("_few", "_many")

    def __init__(self, weight: Tensor, block: int) -> None:
        rounded = weight.half()  # which changes numbers smaller than 6e-5
        self._many = PackedLinear(rounded.to(weight.dtype))
        exchanged = torch.arange(weight.shape[1]).view(-1, 2).flip(1).flatten()
        self._few = [(inputs, HalfLinear(rounded[:, inputs])) for inputs in torch.split(exchanged, block)]

    def __call__(self, rows: Tensor) -> Tensor:
        if rows.shape[0] > _FEW_ROWS:
            return self._many(rows)
        wide = rows.float()
        first, *others = (linear(wide.index_select(1, inputs)) for inputs, linear in self._few)
        for other in others:
            first.add_(other)
        return first.to(rows.dtype)


@dataclass(slots=True)
class CastLinear:
    """A linear that converts rows to its own type, and the result back."""

    linear: Linear
    dtype: torch.dtype

    def __call__(self, rows: Tensor) -> Tensor:
        return self.linear(rows.to(self.dtype)).to(rows.dtype)


@dataclass(slots=True)
class RowCountLinear:
    """Two linears of the same weight: one for a single row, one for more rows."""

    one: Linear
    many: Linear

    def __call__(self, rows: Tensor) -> Tensor:
        return self.one(rows) if rows.shape[0] == 1 else self.many(rows)


@dataclass(slots=True)
class BiasedLinear:
    """A linear plus a bias."""

    linear: Linear
    bias: Tensor

    def __call__(self, rows: Tensor) -> Tensor:
        return self.linear(rows).add_(self.bias)


@dataclass(slots=True)
class HeadNormedLinear:
    """A linear whose first outputs are heads, each of which is normalised (Qwen 3).

    Attributes:
        weight: Weights of the RMS norms of these heads, (heads, dim).
    """

    linear: Linear
    weight: Tensor
    eps: float

    def __call__(self, rows: Tensor) -> Tensor:
        projected = self.linear(rows)
        heads = projected[:, : self.weight.numel()].view(-1, *self.weight.shape)
        heads.copy_(F.rms_norm(heads, self.weight.shape[1:], None, self.eps).mul_(self.weight))
        return projected
