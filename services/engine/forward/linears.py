"""Linear layers of every kind: plain, packed by oneDNN, packed by FBGEMM; each takes rows (rows, in)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

MANY_ROWS = 16
"""A verification of 15 drafts."""

Linear = Callable[[Tensor], Tensor]
Maker = Callable[[Tensor], Linear]
"""From a weight, (out, in)."""


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
        # Private operators: whoever makes one of these compares its answers with those of F.linear.
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, MANY_ROWS)
        self._run = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, rows: Tensor) -> Tensor:
        num_rows = rows.shape[0]
        if num_rows > MANY_ROWS and num_rows % MANY_ROWS:
            # NOTE: oneDNN compiles code for every number of rows and keeps it: by and by 150 MB.
            return self(F.pad(rows, (0, 0, 0, -num_rows % MANY_ROWS)))[:num_rows]
        result: Tensor = self._run(rows, self._packed, None, "none", [], "")
        return result


class HalfLinear:
    """A bfloat16 weight kept as float16, float32 rows: FBGEMM widens the weight as it multiplies.

    It reads half of what float32 does, without instructions for bfloat16. float16 holds bfloat16's digits and
    more; what is smaller than 6e-8 in a weight becomes 0, and what is larger than 65504 does not fit: whoever
    makes one of these compares its answers with those of F.linear.
    """

    __slots__ = ("_packed", "_run")

    def __init__(self, weight: Tensor) -> None:
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight.float(), None)
        self._run = torch.ops.quantized.linear_dynamic_fp16.default

    def __call__(self, rows: Tensor) -> Tensor:
        result: Tensor = self._run(rows, self._packed)
        return result


class CastLinear:
    """A linear for rows of another type than those that it is given, and gives."""

    __slots__ = ("_dtype", "_linear")

    def __init__(self, linear: Linear, dtype: torch.dtype) -> None:
        self._linear = linear
        self._dtype = dtype

    def __call__(self, rows: Tensor) -> Tensor:
        return self._linear(rows.to(self._dtype)).to(rows.dtype)


class TwinLinear:
    """One linear for a single row, another for more, of the same weight."""

    __slots__ = ("_many", "_one")

    def __init__(self, one: Linear, many: Linear) -> None:
        self._one = one
        self._many = many

    def __call__(self, rows: Tensor) -> Tensor:
        return self._one(rows) if rows.shape[0] == 1 else self._many(rows)


class BiasedLinear:
    """A linear without bias, and its bias."""

    __slots__ = ("_bias", "_linear")

    def __init__(self, linear: Linear, bias: Tensor) -> None:
        self._linear = linear
        self._bias = bias

    def __call__(self, rows: Tensor) -> Tensor:
        return self._linear(rows).add_(self._bias)
