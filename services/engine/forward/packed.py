"""The fastest linear for each weight on this CPU, which a measurement finds out."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from services.engine.forward.linears import (
    MANY_ROWS,
    CastLinear,
    HalfLinear,
    Linear,
    Maker,
    PackedLinear,
    PlainLinear,
    TwinLinear,
)

logger = logging.getLogger(__name__)

_GAIN = 0.95
"""Another linear must take less than this share of the present one's time to be chosen."""
_LOSS = 1.05
"""One that stands for the plain one everywhere may take no more than this."""
_MAX_TWIN_ELEMENTS = 1 << 23
"""Larger weights are not kept twice, nor in a wider type."""
_WORKING_SET_BYTES = 1 << 26
"""Of so many bytes at the most a measurement makes copies: more are in no cache either."""
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to keep a weight.

    Attributes:
        make: From the weight.
        takes: Type of the rows that it computes with; None is the weight's.
        is_wider: It takes more memory than the weight.
    """

    make: Maker
    takes: torch.dtype | None = None
    is_wider: bool = False

    def __call__(self, weight: Tensor, rows_dtype: torch.dtype) -> Linear:
        """A linear without bias, for rows of this type."""
        linear, takes = self.make(weight), self.takes or weight.dtype
        return linear if takes is rows_dtype else CastLinear(linear, takes)


PLAIN, PACKED = Kind(PlainLinear), Kind(PackedLinear)
HALF = Kind(HalfLinear, torch.float32)
# bfloat16 saves memory traffic, which a single row is bound by, but on CPUs without instructions for it no
# arithmetic, which many rows are.
WIDENED = Kind(lambda weight: PackedLinear(weight.float()), torch.float32, is_wider=True)


@dataclass(frozen=True, slots=True)
class Choice:
    """The kind for one row, and the kind for more."""

    one: Kind
    many: Kind

    def __call__(self, weight: Tensor, rows_dtype: torch.dtype) -> Linear:
        one = self.one(weight, rows_dtype)
        return one if self.many is self.one else TwinLinear(one, self.many(weight, rows_dtype))


class LinearMaker:
    """Makes the fastest linear for each weight; measures each shape once.

    Attributes:
        chosen: Shape (out, in) to what was chosen for it.
    """

    def __init__(self, rows_dtype: torch.dtype | None = None, num_layers: int = 1) -> None:
        """For a model of so many layers, and rows of this type; None is the weight's."""
        self.chosen: dict[tuple[int, ...], Choice] = {}
        self._rows_dtype = rows_dtype
        self._num_layers = num_layers

    def __call__(self, weight: Tensor) -> Linear:
        """A linear without bias."""
        weight = weight.detach().contiguous()
        shape, rows_dtype = tuple(weight.shape), self._rows_dtype or weight.dtype
        if shape not in self.chosen:
            self.chosen[shape] = _fastest(weight, rows_dtype, self._num_layers)
        choice, plain = self.chosen[shape], PLAIN(weight, rows_dtype)
        if choice == Choice(PLAIN, PLAIN):
            return plain
        linear = choice(weight, rows_dtype)
        if _agrees(linear, plain, weight, rows_dtype):
            return linear
        logger.warning("packed linear %s disagrees with the plain one: not used", shape)
        return plain

    def describe(self) -> str:
        """How many shapes are packed."""
        packed = sum(choice != Choice(PLAIN, PLAIN) for choice in self.chosen.values())
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


def _kinds(weight: Tensor) -> Sequence[Kind]:
    """What may be tried, the most modest first."""
    if weight.dtype is not torch.bfloat16:
        return (PLAIN, PACKED)
    has_fbgemm = "fbgemm" in torch.backends.quantized.supported_engines
    kinds = (PLAIN, PACKED, *((HALF,) if has_fbgemm else ()), WIDENED)
    return [kind for kind in kinds if not kind.is_wider or weight.numel() <= _MAX_TWIN_ELEMENTS]


def _fastest(weight: Tensor, rows_dtype: torch.dtype, num_layers: int) -> Choice:
    """The fastest kind for one row beside the fastest for many; one kind for both where two are too large."""
    try:
        seconds = {kind: _seconds(kind, weight, rows_dtype, num_layers) for kind in _kinds(weight)}
    except (RuntimeError, AttributeError) as error:
        logger.warning("packed linears are not available: %s", error)
        return Choice(PLAIN, PLAIN)
    one, many = ({kind: pair[index] for kind, pair in seconds.items()} for index in (0, 1))
    if weight.numel() <= _MAX_TWIN_ELEMENTS:
        for_one = _least(one, PLAIN)
        return Choice(for_one, _least(many, for_one))
    return _single(one, many)


def _single(one: Mapping[Kind, float], many: Mapping[Kind, float]) -> Choice:
    """The kind that gains most for many rows, of those that do not lose for one."""
    fair = {kind: many[kind] for kind in many if one[kind] <= _LOSS * one[PLAIN]}
    kind = _least(fair, PLAIN)
    return Choice(kind, kind)


def _least(seconds: Mapping[Kind, float], present: Kind) -> Kind:
    """The present kind unless another is clearly faster."""
    best = min(seconds, key=seconds.__getitem__)
    return best if seconds[best] < _GAIN * seconds[present] else present


def _seconds(kind: Kind, weight: Tensor, rows_dtype: torch.dtype, num_layers: int) -> tuple[float, float]:
    """Of one row and of many, the least of several runs.

    A forward comes back to a weight when it has read all the others: as many copies stand for them.
    """
    num_copies = min(num_layers, 1 + _WORKING_SET_BYTES // weight.nbytes)
    linears = [kind(weight.clone(), rows_dtype) for _ in range(num_copies)]
    repetitions = max(2, min(20, (1 << 22) // (weight.numel() * num_copies)))
    return _least_s(linears, weight, rows_dtype, 1, repetitions), _least_s(
        linears, weight, rows_dtype, MANY_ROWS, repetitions
    )


def _least_s(
    linears: Sequence[Linear], weight: Tensor, rows_dtype: torch.dtype, num_rows: int, repetitions: int
) -> float:
    rows = torch.ones(num_rows, weight.shape[1], dtype=rows_dtype)
    best = float("inf")
    for _ in range(repetitions):
        start = time.perf_counter()
        for linear in linears:
            linear(rows)
        best = min(best, time.perf_counter() - start)
    return best / len(linears)


def _agrees(linear: Linear, plain: Linear, weight: Tensor, rows_dtype: torch.dtype) -> bool:
    """Whether it computes what the plain one does, for one row and for many."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(MANY_ROWS, weight.shape[1], generator=generator).to(rows_dtype)
    for some in (rows[:1], rows):
        expected = plain(some)
        scale = expected.abs().max().clamp(min=1e-6)
        if not bool((linear(some) - expected).abs().max() <= _TOLERANCE[weight.dtype] * scale):
            return False
    return True
