"""Linears in eight bits: weights by output channel, rows by their own largest value (W8A8)."""

import logging
from functools import cache

import torch
from torch import Tensor

from flyserve.core.errors import ModelError
from services.engine.forward.linears import (
    MANY_ROWS,
    Linear,
    MakeLinear,
    PlainLinear,
    in_padded_rows,
    relative_error,
)

logger = logging.getLogger(__name__)

_MOST = 127
_MOST_OF_SEVEN_BITS = 63
_SMALLEST = 1e-12
_TOLERANCE = 0.05
"""Largest error of a probe, by the largest result; rounding alone gives 1 to 2%."""


class Int8Linear:
    """A weight in int8, whose product with rows in uint8 is summed in integers, without rounding.

    A row's result is the same bits whatever other rows it is computed with, unlike that of a product in
    floating point: a verification and a decode then agree in every linear. Weights are scaled by output
    channel and rows each by its largest value, both symmetrically (Dettmers et al., LLM.int8(), 2022,
    section 2.1, vector-wise quantization). Where this CPU's product of eight bits overflows, rows have seven.
    """

    __slots__ = ("_most", "_offset", "_packed", "_run", "_scale", "_smallest")

    def __init__(self, weight: Tensor) -> None:
        """Quantize a weight, (out, in), which is not kept."""
        scale = weight.float().abs().amax(1).clamp_(min=_SMALLEST).div_(_MOST)
        quantized = weight.float().div(scale[:, None]).round_().to(torch.int8)
        self._packed = _pack(quantized)
        self._run = torch.ops.onednn.qlinear_pointwise.default
        self._scale, self._offset = scale, torch.zeros(len(scale), dtype=torch.int32)
        self._smallest = torch.tensor(_SMALLEST)
        self._most = _MOST_OF_SEVEN_BITS if _overflows() else _MOST

    def __call__(self, rows: Tensor) -> Tensor:
        return in_padded_rows(self._multiply, rows)

    def _multiply(self, rows: Tensor) -> Tensor:
        wide, zero = rows.float(), self._most + 1
        scale = torch.add(self._smallest, wide.abs().amax(1, keepdim=True), alpha=1 / self._most)
        # uint8 has no sign: `zero` stands for 0, and the half makes the conversion round.
        quantized = wide.div(scale).add_(zero + 0.5).to(torch.uint8)
        result: Tensor = self._run(
            quantized,
            *(1.0, zero, self._packed, self._scale, self._offset, None),
            *(1.0, 0, torch.float32, "none", [], ""),
        )
        return result.mul_(scale).to(rows.dtype)


def int8_name() -> str:
    """Return the name of this CPU's way to compute in eight bits: the other way gives other results."""
    return "int8-w8a7" if _overflows() else "int8"


@cache
def _overflows() -> bool:
    """Return True if products of eight bits overflow on this CPU, as without VNNI or AMX instructions.

    These CPUs add two products at a time in 16 bits.
    """
    ones, most = torch.ones(16), torch.full((16, 64), _MOST, dtype=torch.int8)
    product: Tensor = torch.ops.onednn.qlinear_pointwise.default(
        torch.full((1, 64), 255, dtype=torch.uint8),
        *(1.0, 0, _pack(most), ones, torch.zeros(16, dtype=torch.int32), None),
        *(1.0, 0, torch.float32, "none", [], ""),
    )
    return bool((product != 64 * 255 * _MOST).any())


def _pack(quantized: Tensor) -> Tensor:
    # Private operators: compare the results with those of F.linear before use.
    packed: Tensor = torch.ops.onednn.qlinear_prepack(quantized, [MANY_ROWS, quantized.shape[1]])
    return packed


class Int8Maker:
    """Makes linears in int8, and checks each against the plain one."""

    def __init__(self, make_other: MakeLinear = PlainLinear) -> None:
        """Set the maker of linears for weights that int8 represents badly."""
        self._make_other = make_other
        self._num_made = self._num_plain = 0

    def __call__(self, weight: Tensor) -> Linear:
        """Make a linear without bias; another kind where int8 is too far from the plain one.

        Raises:
            ModelError: This CPU, or this build of torch, has no such product.
        """
        weight = weight.detach().contiguous()
        try:
            linear = Int8Linear(weight)
            is_near = relative_error(linear, weight, weight.dtype) <= _TOLERANCE
        except (RuntimeError, AttributeError) as error:
            raise ModelError(f"quantization: is int8, which this CPU cannot compute: {error}") from error
        self._num_made += 1
        if is_near:
            return linear
        self._num_plain += 1
        logger.warning("int8: a weight of %d x %d stays as it is: the error is too large", *weight.shape)
        return self._make_other(weight)

    def describe(self) -> str:
        """Describe how many weights are in int8."""
        return f"{self._num_made - self._num_plain} of {self._num_made} weights in {int8_name()}"
