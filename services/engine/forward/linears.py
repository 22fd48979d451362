"""Linear layers: plain, packed by oneDNN, packed by FBGEMM; each takes rows of shape (rows, in)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

MANY_ROWS = 16
"""Rows of a verification of 15 drafts."""

Linear = Callable[[Tensor], Tensor]
MakeLinear = Callable[[Tensor], Linear]
"""Makes a linear from a weight, (out, in)."""


class PlainLinear:
    """`F.linear` without a module around it."""

    __slots__ = ("weight",)

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def __call__(self, rows: Tensor) -> Tensor:
        return F.linear(rows, self.weight)


class PackedLinear:
    """A weight in oneDNN's own layout; the unpacked one is not kept."""

    __slots__ = ("_packed", "_run")

    def __init__(self, weight: Tensor) -> None:
        # Private operators: compare the results with those of F.linear before use.
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, MANY_ROWS)
        self._run = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, rows: Tensor) -> Tensor:
        num_rows = rows.shape[0]
        if num_rows > MANY_ROWS and num_rows % MANY_ROWS:
            # NOTE: oneDNN compiles and caches code for every number of rows, up to 150 MB.
            return self(F.pad(rows, (0, 0, 0, -num_rows % MANY_ROWS)))[:num_rows]
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


class CastLinear:
    """A linear that converts rows to its own type, and the result back."""

    __slots__ = ("_dtype", "_linear")

    def __init__(self, linear: Linear, dtype: torch.dtype) -> None:
        self._linear = linear
        self._dtype = dtype

    def __call__(self, rows: Tensor) -> Tensor:
        return self._linear(rows.to(self._dtype)).to(rows.dtype)


class RowCountLinear:
    """Two linears of the same weight: one for a single row, one for more rows."""

    __slots__ = ("_many", "_one")

    def __init__(self, one: Linear, many: Linear) -> None:
        self._one = one
        self._many = many

    def __call__(self, rows: Tensor) -> Tensor:
        return self._one(rows) if rows.shape[0] == 1 else self._many(rows)


class BiasedLinear:
    """A linear plus a bias."""

    __slots__ = ("_bias", "_linear")

    def __init__(self, linear: Linear, bias: Tensor) -> None:
        self._linear = linear
        self._bias = bias

    def __call__(self, rows: Tensor) -> Tensor:
        return self._linear(rows).add_(self._bias)
