"""Linear layers with pre-packed weights: faster on CPUs for some shapes, which a measurement finds out."""

import logging
import time
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

logger = logging.getLogger(__name__)

MANY_ROWS = 16
"""A verification of 15 drafts."""
_GAIN = 0.95
"""Another linear must take less than this share of the plain one's time to be chosen."""
_LOSS = 1.05
"""One that stands for the plain one everywhere may take no more than this."""
_MAX_TWIN_ELEMENTS = 1 << 23
"""Larger weights are not kept both packed and unpacked."""
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
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
        num_rows = len(rows)
        if num_rows > MANY_ROWS and num_rows % MANY_ROWS:
            # NOTE: oneDNN compiles code for every number of rows and keeps it: by and by 150 MB.
            return self(F.pad(rows, (0, 0, 0, -num_rows % MANY_ROWS)))[:num_rows]
        result: Tensor = self._run(rows, self._packed, None, "none", [], "")
        return result


class WidenedLinear:
    """bfloat16 rows through a packed float32 weight: for CPUs without instructions for bfloat16.

    There bfloat16 saves memory traffic, which a single row is bound by, but no arithmetic, which many are.
    """

    __slots__ = ("_packed",)

    def __init__(self, weight: Tensor) -> None:
        self._packed = PackedLinear(weight.float())

    def __call__(self, rows: Tensor) -> Tensor:
        return self._packed(rows.float()).to(rows.dtype)


class TwinLinear:
    """One linear for a single row, another for more, of the same weight."""

    __slots__ = ("_many", "_one")

    def __init__(self, one: Linear, many: Linear) -> None:
        self._one = one
        self._many = many

    def __call__(self, rows: Tensor) -> Tensor:
        return self._one(rows) if len(rows) == 1 else self._many(rows)


class BiasedLinear:
    """A linear without bias, and its bias."""

    __slots__ = ("_bias", "_linear")

    def __init__(self, linear: Linear, bias: Tensor) -> None:
        self._linear = linear
        self._bias = bias

    def __call__(self, rows: Tensor) -> Tensor:
        return self._linear(rows).add_(self._bias)


class LinearMaker:
    """Makes the fastest linear for each weight; measures each shape once.

    Attributes:
        chosen: Shape (out, in) to what was chosen for it.
    """

    def __init__(self) -> None:
        self.chosen: dict[tuple[int, ...], Maker] = {}

    def __call__(self, weight: Tensor) -> Linear:
        """A linear without bias."""
        weight = weight.detach().contiguous()
        shape = tuple(weight.shape)
        if shape not in self.chosen:
            self.chosen[shape] = _fastest(weight)
        linear = self.chosen[shape](weight)
        if isinstance(linear, PlainLinear) or _agrees(linear, weight):
            return linear
        logger.warning("packed linear %s disagrees with the plain one: not used", shape)
        return PlainLinear(weight)

    def describe(self) -> str:
        """How many shapes are packed."""
        packed = sum(kind is not PlainLinear for kind in self.chosen.values())
        return f"{packed} of {len(self.chosen)} shapes packed"


class PackedModule(nn.Module):
    """Stands for an `nn.Linear` inside a transformers model."""

    def __init__(self, linear: Linear, out_features: int, bias: Tensor | None) -> None:
        super().__init__()
        self._out_features = out_features
        self._linear = linear
        self._bias = bias

    def forward(self, rows: Tensor) -> Tensor:
        if rows.numel() == 0:
            return rows.new_empty(*rows.shape[:-1], self._out_features)
        flat = self._linear(rows.flatten(0, -2)).view(*rows.shape[:-1], -1)
        return flat if self._bias is None else flat + self._bias


def pack_model(model: nn.Module, make: LinearMaker) -> None:
    """Replaces a model's linears where packing pays; weights shared with an embedding stay as they are."""
    shared = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and id(child.weight) not in shared:
                linear = make(child.weight)
                if not isinstance(linear, PlainLinear):
                    setattr(parent, name, PackedModule(linear, child.out_features, child.bias))


def can_pack(dtype: torch.dtype, device: str) -> bool:
    """Whether this machine has packed kernels worth a measurement."""
    if device != "cpu" or not torch._C._has_mkldnn:
        return False
    has_bf16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype is torch.float32 or (dtype is torch.bfloat16 and bool(has_bf16))


def _fastest(weight: Tensor) -> Maker:
    """The fastest kind for one row beside the fastest for many; one kind for both where two are too large."""
    kinds: tuple[Maker, ...] = (PlainLinear, PackedLinear)
    if weight.dtype is torch.bfloat16 and weight.numel() <= _MAX_TWIN_ELEMENTS:
        kinds = (*kinds, WidenedLinear)
    try:
        one, many = ({kind: _seconds(kind(weight), weight, n) for kind in kinds} for n in (1, MANY_ROWS))
    except (RuntimeError, AttributeError) as error:
        logger.warning("packed linears are not available: %s", error)
        return PlainLinear
    for_one, for_many = _least(one), _least(many)
    if for_one is for_many:
        return for_one
    if weight.numel() <= _MAX_TWIN_ELEMENTS:
        return lambda weight: TwinLinear(for_one(weight), for_many(weight))
    is_loss = one[PackedLinear] > _LOSS * one[PlainLinear] or many[PackedLinear] > _LOSS * many[PlainLinear]
    return PlainLinear if is_loss else PackedLinear


def _least(seconds: Mapping[Maker, float]) -> Maker:
    """The plain one unless another is clearly faster."""
    best = min(seconds, key=seconds.__getitem__)
    return best if seconds[best] < _GAIN * seconds[PlainLinear] else PlainLinear


def _seconds(linear: Linear, weight: Tensor, num_rows: int) -> float:
    """Of one run, the least of several."""
    rows = torch.ones(num_rows, weight.shape[1], dtype=weight.dtype)
    repetitions = max(2, min(20, (1 << 22) // weight.numel()))
    best = float("inf")
    for _ in range(repetitions):
        start = time.perf_counter()
        linear(rows)
        linear(rows)
        best = min(best, time.perf_counter() - start)
    return best


def _agrees(linear: Linear, weight: Tensor) -> bool:
    """Whether it computes what `F.linear` does, for one row and for many."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(MANY_ROWS, weight.shape[1], generator=generator).to(weight.dtype)
    for some in (rows[:1], rows):
        expected = F.linear(some, weight)
        scale = expected.abs().max().clamp(min=1e-6)
        if not bool((linear(some) - expected).abs().max() <= _TOLERANCE[weight.dtype] * scale):
            return False
    return True
