"""Linears that give a row the same bits in any batch, proven by a test; in a fixed order of preference."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from services.common.machine.machine import has_matrix_units
from services.engine.forward.linears import Linear, PairedLinear, PlainLinear, relative_error
from services.engine.forward.packed import (
    HALF,
    MAX_DUPLICATED_ELEMENTS,
    PACKED,
    PLAIN,
    TOLERANCE,
    WIDENED,
    WORKING_SET_BYTES,
    LinearKind,
    linear_kinds,
)

logger = logging.getLogger(__name__)

PAIRED = tuple(
    LinearKind(partial(PairedLinear, block=block), torch.bfloat16, is_wider=True) for block in (512, 1024)
)
"""Kinds for one and many rows, by the inputs whose sums oneDNN adds."""
_LEAST_PAIRED_ELEMENTS = 1 << 20
"""For one row of a smaller weight, the exchange and the conversions cost more than many rows gain."""
_MOST_ROWS = 512
_CPU_BOUNDS = ((1, _MOST_ROWS), (2, _MOST_ROWS), (4, _MOST_ROWS), (16, _MOST_ROWS))
"""Fewest and most rows of a call on a CPU, in the order in which they are tried until all give equal bits."""
_TILE_BOUNDS = ((1, 32), (16, 32))
"""The same with matrix units: for more rows than two tiles, oneDNN adds the terms in another order."""
_BOUNDS = ((1, _MOST_ROWS), (64, _MOST_ROWS), (64, 64))
"""Fewest and most rows of a plain linear's call on a GPU, in the order in which they are tried. On an H200
those of Llama 3.1 8B need the first (queries, gate and head), the second (output) and the third (down)."""
_COUNTS = (*range(1, 9), 13, 17, 31, 33, 100, *range(16, 257, 16), _MOST_ROWS)
"""Numbers of rows at which libraries may choose another kernel, and those of up to 16 whole verifications."""


@dataclass(slots=True)
class BoundedLinear:
    """A linear of which each call computes at least `least` rows and at most `most`, which are tested."""

    linear: Linear
    least: int
    most: int = _MOST_ROWS

    def __call__(self, rows: Tensor) -> Tensor:
        count = len(rows)
        if self.least <= count <= self.most:
            return self.linear(rows)
        if count < self.least:
            return self.linear(F.pad(rows, (0, 0, 0, self.least - count)))[:count]
        return torch.cat([self(part) for part in torch.split(rows, self.most)])


def is_row_invariant(
    linear: Linear,
    weight: Tensor,
    rows_dtype: torch.dtype,
    rows: Tensor | None = None,
    counts: Sequence[int] = _COUNTS,
) -> bool:
    """Check that a row gives the same bits in batches of these sizes; `linear` multiplies by this weight."""
    if rows is None:
        rows = torch.randn(_MOST_ROWS, weight.shape[1], generator=torch.Generator().manual_seed(0))
    rows = rows.to(weight.device, rows_dtype)
    expected = linear(rows)
    spans = [
        slice(first, first + count) for count in counts for first in {0, 7 % count, 64 - count} if first >= 0
    ]
    return all(torch.equal(linear(rows[span]), expected[span]) for span in spans)


class ProvenMaker:
    """Makes the first kind of linear, in a fixed order, that is row-invariant and near the plain one.

    The order is fixed, not measured, so that equal machines compute equal bits.
    """

    def __init__(self, rows_dtype: torch.dtype | None = None) -> None:
        """Set the type of rows; None is the weight's type."""
        self._rows_dtype = rows_dtype
        self._bounds: dict[tuple[LinearKind, tuple[int, ...]], tuple[int, int] | None] = {}
        self._packed: dict[tuple[int, ...], bool] = {}

    def __call__(self, weight: Tensor) -> Linear:
        """Make a linear without bias; the plain one where none is proven: the check of rows finds it."""
        return self._make(weight.detach().contiguous(), _preferred(weight))

    def make_copy(self, weight: Tensor) -> Linear:
        """Make a linear for a weight that stays in memory: the plain one where it is fast."""
        first = (PLAIN,) if has_matrix_units() or weight.dtype is torch.float32 else ()
        return self._make(weight.detach().contiguous(), (*first, *_preferred(weight)))

    def describe(self) -> str:
        """Describe how many shapes are packed."""
        return f"{sum(self._packed.values())} of {len(self._packed)} shapes packed"

    def _make(self, weight: Tensor, kinds: Sequence[LinearKind]) -> Linear:
        rows_dtype = self._rows_dtype or weight.dtype
        for kind, bounds in self._proven(weight, kinds, rows_dtype):
            linear = BoundedLinear(kind(weight, rows_dtype), *bounds)
            if relative_error(linear, weight, rows_dtype) <= TOLERANCE[weight.dtype]:
                self._packed[tuple(weight.shape)] = kind is not PLAIN
                return linear
        logger.warning("no linear of %s gives a row equal bits in any batch", tuple(weight.shape))
        return PLAIN(weight, rows_dtype)

    def _proven(
        self, weight: Tensor, kinds: Sequence[LinearKind], rows_dtype: torch.dtype
    ) -> Iterator[tuple[LinearKind, tuple[int, int]]]:
        """Return the kinds that are proven for this shape, each with the fewest and most rows of a call."""
        available = (*linear_kinds(weight), *PAIRED)
        for kind in kinds:
            key = kind, tuple(weight.shape)
            if kind in available and key not in self._bounds:
                self._bounds[key] = _proven_bounds(kind, weight, rows_dtype)
            if (bounds := self._bounds.get(key)) is not None:
                yield kind, bounds


class TiledMaker:
    """Makes plain linears that compute as many rows at a time as are proven row-invariant, for GPUs.

    There a library divides the sum of a long row among more or fewer blocks, by the number of rows.
    """

    def __init__(self) -> None:
        self._bounds: dict[tuple[int, ...], tuple[int, int] | None] = {}

    def __call__(self, weight: Tensor) -> Linear:
        """Make a linear without bias; the plain one where nothing is proven: the check of rows finds it."""
        plain, shape = PlainLinear(weight.detach()), tuple(weight.shape)
        if shape not in self._bounds:
            proven = (
                bounds
                for bounds in _BOUNDS
                if is_row_invariant(BoundedLinear(plain, *bounds), weight, weight.dtype)
            )
            self._bounds[shape] = next(proven, None)
        bounds = self._bounds[shape]
        return plain if bounds is None else BoundedLinear(plain, *bounds)

    def describe(self) -> str:
        """Describe how many shapes are proven, and how many of them are computed in other numbers of rows."""
        proven = [bounds for bounds in self._bounds.values() if bounds is not None]
        tiled = sum(bounds != _BOUNDS[0] for bounds in proven)
        return f"{len(proven)} of {len(self._bounds)} shapes row-invariant, {tiled} of them in tiles"


def _proven_bounds(kind: LinearKind, weight: Tensor, rows_dtype: torch.dtype) -> tuple[int, int] | None:
    """Return the fewest and most rows of a call with which a row has equal bits; None if there are none."""
    sample, rows = cancelling(weight)
    try:
        linear = kind(sample, rows_dtype)
        tried = _CPU_BOUNDS[:1] if kind in PAIRED else _CPU_BOUNDS
        if has_matrix_units() and kind in (PACKED, PLAIN):
            tried = (*tried, *_TILE_BOUNDS)
        proven = (
            bounds
            for bounds in tried
            if is_row_invariant(BoundedLinear(linear, *bounds), sample, rows_dtype, rows, _counts(bounds[1]))
        )
        return next(proven, None)
    except (RuntimeError, AttributeError) as error:
        logger.warning("a packed linear is not available: %s", error)
        return None


def _counts(most: int) -> Sequence[int]:
    """Return the numbers of rows to try: all that a call has, if it has few."""
    return _COUNTS if most == _MOST_ROWS else (*range(1, most + 1), *_COUNTS)


def cancelling(like: Tensor) -> tuple[Tensor, Tensor]:
    """Return a weight shaped as another, (out, in), and rows whose terms cancel each other.

    So a result is what rounding has left, and shows the order of its sum, also in bfloat16. The outputs of a
    large weight are alike, so it has fewer of them.
    """
    outputs = min(len(like), 1 + WORKING_SET_BYTES // like[0].nbytes)
    width, generator = like.shape[1], torch.Generator().manual_seed(0)
    both = torch.randn(outputs + _MOST_ROWS, width // 2, generator=generator).to(like.dtype)
    again = both[:, torch.randperm(width // 2, generator=generator)]
    again[outputs:] *= -1
    whole = F.pad(torch.cat([both, again], 1), (0, width % 2))
    return whole[:outputs].contiguous(), whole[outputs:]


def _preferred(weight: Tensor) -> Sequence[LinearKind]:
    """Return the kinds in the order of their speed on this kind of CPU."""
    if weight.dtype is not torch.bfloat16:
        return (PACKED, PLAIN)
    # Products of bfloat16 pay for the conversion of rows where the weight is large.
    is_large = weight.numel() > MAX_DUPLICATED_ELEMENTS
    has_products = bool(torch.cpu.get_capabilities().get("avx512_bf16"))
    if has_matrix_units() or (is_large and has_products):
        return (PACKED, HALF, PLAIN)
    if has_products and weight.numel() >= _LEAST_PAIRED_ELEMENTS and weight.shape[1] % 2 == 0:
        return (*PAIRED, HALF, WIDENED, PACKED, PLAIN)
    return (HALF, WIDENED, PACKED, PLAIN)
