"""Choose the fastest linear for each weight on this CPU, by measurement."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from services.engine.forward.linears import (
    MANY_ROWS,
    CastLinear,
    HalfLinear,
    Linear,
    MakeLinear,
    PackedLinear,
    PlainLinear,
    RowCountLinear,
    relative_error,
)

logger = logging.getLogger(__name__)

_GAIN = 0.95
"""A linear is chosen if it takes less than this share of the current choice's time."""
_LOSS = 1.05
"""A linear used for every number of rows may take at most this share of the plain one's time for one row."""
_GAIN_OF_COPY = 0.5
"""A copy of a weight is kept beside it if many rows take less than this share of the plain one's time."""
MAX_DUPLICATED_ELEMENTS = 1 << 23
"""Larger weights are neither stored twice nor in a wider type."""
WORKING_SET_BYTES = 1 << 26
"""Largest total size of the copies made for a measurement; above this, weights exceed CPU caches anyway."""
_MIN_REPETITIONS = 4
_MAX_S = 0.3
"""Seconds after which a measurement ends: without its instructions, bfloat16 is up to 60 times as slow."""
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@dataclass(frozen=True, slots=True)
class LinearKind:
    """A way to store a weight and multiply by it.

    Attributes:
        compute_dtype: Type of the rows that it computes with; None is the weight's type.
        is_wider: It needs more memory than the weight.
    """

    make: MakeLinear
    compute_dtype: torch.dtype | None = None
    is_wider: bool = False

    def __call__(self, weight: Tensor, rows_dtype: torch.dtype) -> Linear:
        """Make a linear without bias, for rows of this type."""
        linear, compute_dtype = self.make(weight), self.compute_dtype or weight.dtype
        return linear if compute_dtype is rows_dtype else CastLinear(linear, compute_dtype)


PLAIN, PACKED = LinearKind(PlainLinear), LinearKind(PackedLinear)
HALF = LinearKind(HalfLinear, torch.float32)
# bfloat16 saves memory traffic, which limits a single row; on CPUs without bfloat16 instructions it saves no
# arithmetic, which limits many rows.
WIDENED = LinearKind(lambda weight: PackedLinear(weight.float()), torch.float32, is_wider=True)


@dataclass(frozen=True, slots=True)
class LinearChoice:
    """The kinds of linear for one row and for more rows.

    Attributes:
        share: Time for many rows, by that of the plain kind.
    """

    one: LinearKind
    many: LinearKind
    share: float = field(default=1.0, compare=False)

    def __call__(self, weight: Tensor, rows_dtype: torch.dtype) -> Linear:
        one = self.one(weight, rows_dtype)
        return one if self.many is self.one else RowCountLinear(one, self.many(weight, rows_dtype))


class LinearMaker:
    """Makes the fastest linear for each weight; measures each shape once.

    Attributes:
        chosen: The choice for each shape (out, in).
    """

    def __init__(self, rows_dtype: torch.dtype | None = None, num_layers: int = 1) -> None:
        """Set the number of layers of the model and the type of rows; None is the weight's type."""
        self.chosen: dict[tuple[int, ...], LinearChoice] = {}
        self._rows_dtype = rows_dtype
        self._num_layers = num_layers

    def __call__(self, weight: Tensor) -> Linear:
        """Make a linear without bias."""
        weight = weight.detach().contiguous()
        shape, rows_dtype = tuple(weight.shape), self._rows_dtype or weight.dtype
        choice, plain = self._choose(weight), PLAIN(weight, rows_dtype)
        if choice == LinearChoice(PLAIN, PLAIN):
            return plain
        linear = choice(weight, rows_dtype)
        if relative_error(linear, weight, rows_dtype) <= TOLERANCE[weight.dtype]:
            return linear
        logger.warning("packed linear %s differs from the plain one: not used", shape)
        return plain

    def make_copy(self, weight: Tensor) -> Linear:
        """Make a linear for a weight that stays in memory: the plain one, unless another is much faster."""
        if self._choose(weight.detach().contiguous()).share >= _GAIN_OF_COPY:
            self.chosen[tuple(weight.shape)] = LinearChoice(PLAIN, PLAIN)
        return self(weight)

    def describe(self) -> str:
        """Describe how many shapes are packed."""
        packed = sum(choice != LinearChoice(PLAIN, PLAIN) for choice in self.chosen.values())
        return f"{packed} of {len(self.chosen)} shapes packed"

    def _choose(self, weight: Tensor) -> LinearChoice:
        shape = tuple(weight.shape)
        if shape not in self.chosen:
            self.chosen[shape] = _fastest(weight, self._rows_dtype or weight.dtype, self._num_layers)
        return self.chosen[shape]


class PackedModule(nn.Module):
    """Replacement of an `nn.Linear` inside a transformers model."""

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


def pack_model(model: nn.Module, make: MakeLinear, make_copy: MakeLinear = PlainLinear) -> None:
    """Replace linears where packing is faster; a weight shared with an embedding stays in memory as well."""
    shared = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                linear = (make_copy if id(child.weight) in shared else make)(child.weight)
                if not isinstance(linear, PlainLinear):
                    setattr(parent, name, PackedModule(linear, child.out_features, child.bias))


def can_pack(dtype: torch.dtype, device: str) -> bool:
    """Check that this machine has packed kernels."""
    return device == "cpu" and torch._C._has_mkldnn and dtype in TOLERANCE


def linear_kinds(weight: Tensor) -> Sequence[LinearKind]:
    """Return the kinds that this CPU can compute, those with the least memory first."""
    if weight.dtype is not torch.bfloat16:
        return (PLAIN, PACKED)
    has_bf16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    has_fbgemm = "fbgemm" in torch.backends.quantized.supported_engines
    kinds = (PLAIN, *((PACKED,) if has_bf16 else ()), *((HALF,) if has_fbgemm else ()), WIDENED)
    return [kind for kind in kinds if not kind.is_wider or weight.numel() <= MAX_DUPLICATED_ELEMENTS]


def _fastest(weight: Tensor, rows_dtype: torch.dtype, num_layers: int) -> LinearChoice:
    """Return the fastest kinds for one row and for many; one kind for both if two would be too large."""
    try:
        seconds = {kind: _seconds(kind, weight, rows_dtype, num_layers) for kind in linear_kinds(weight)}
    except (RuntimeError, AttributeError) as error:
        logger.warning("packed linears are not available: %s", error)
        return LinearChoice(PLAIN, PLAIN)
    one, many = ({kind: pair[index] for kind, pair in seconds.items()} for index in (0, 1))
    if weight.numel() <= MAX_DUPLICATED_ELEMENTS:
        for_one = _fastest_kind(one, PLAIN)
        for_many = _fastest_kind(many, for_one)
    else:
        for_one = for_many = _single(one, many)
    return LinearChoice(for_one, for_many, many[for_many] / many[PLAIN])


def _single(one: Mapping[LinearKind, float], many: Mapping[LinearKind, float]) -> LinearKind:
    """Return the fastest kind for many rows among those that are not slower for one."""
    candidates = {kind: many[kind] for kind in many if one[kind] <= _LOSS * one[PLAIN]}
    return _fastest_kind(candidates, PLAIN)


def _fastest_kind(seconds: Mapping[LinearKind, float], current: LinearKind) -> LinearKind:
    """Return the fastest kind if it is clearly faster than the current one."""
    best = min(seconds, key=seconds.__getitem__)
    return best if seconds[best] < _GAIN * seconds[current] else current


def _seconds(
    kind: LinearKind, weight: Tensor, rows_dtype: torch.dtype, num_layers: int
) -> tuple[float, float]:
    """Measure the seconds for one row and for many, the minimum of several runs.

    One thread is measured by its CPU time: on a busy machine, real time would choose by chance.

    A forward returns to a weight after reading all others; copies of the weight stand for the other layers.
    """
    # The outputs of a large weight are alike: a sample that exceeds the CPU's caches is enough.
    weight = weight[: 1 + WORKING_SET_BYTES // weight[0].nbytes]
    num_copies = min(num_layers, 1 + WORKING_SET_BYTES // weight.nbytes)
    linears = [kind(weight.clone(), rows_dtype) for _ in range(num_copies)]
    repetitions = max(_MIN_REPETITIONS, min(20, (1 << 22) // (weight.numel() * num_copies)))
    rows = torch.ones(MANY_ROWS, weight.shape[1], dtype=rows_dtype)
    return _minimum_s(linears, rows[:1], repetitions), _minimum_s(linears, rows, repetitions)


def _minimum_s(linears: Sequence[Linear], rows: Tensor, repetitions: int) -> float:
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    best, total = float("inf"), 0.0
    for _ in range(repetitions):
        start = clock()
        for linear in linears:
            linear(rows)
        seconds = clock() - start
        best, total = min(best, seconds), total + seconds
        if total > _MAX_S:
            break
    return best / len(linears)
