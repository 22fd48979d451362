"""A small model over 4,096 positions: rows at any places have the bits of the whole sequence."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st

from flyserve.core.messages import Role
from services.engine.base import ForwardInput
from services.engine.config import Dtype, ModelConfig, Quantization
from services.engine.forward.self_check import input_of
from services.engine.forward.torch_runner import load_runner
from tests.support.tiny_models import VOCAB_SIZE, make_tiny

CONTEXT = 4096
MOST_PLACES = 3


class Rows(NamedTuple):
    """Rows of a sequence, from position `start` on."""

    start: int
    count: int

    @property
    def end(self) -> int:
        """Position after the last one."""
        return min(self.start + self.count, CONTEXT)


PLACES = st.lists(
    st.builds(Rows, st.integers(0, CONTEXT - 1), st.integers(1, 64)), min_size=1, max_size=MOST_PLACES
)
"""Up to 64 rows of each of up to three sequences."""


class LongContext:
    """A sequence of 4,096 tokens, and its logits."""

    def __init__(
        self,
        folder: Path,
        kind: str,
        dtype: Dtype,
        quantization: Quantization = Quantization.NONE,
        **changes: Any,
    ) -> None:
        """Load a model of a kind; `changes` are values of its configuration."""
        make_tiny(kind, max_position_embeddings=CONTEXT, **changes).save_pretrained(folder)
        self._runner = load_runner(
            ModelConfig(
                model=folder,
                role=Role.TARGET,
                dtype=dtype,
                quantization=quantization,
                kv_tokens=(2 + MOST_PLACES) * CONTEXT,
                row_invariant="on",
                max_sequences=1 + MOST_PLACES,
            )
        )
        drawn = torch.randint(VOCAB_SIZE, (CONTEXT,), generator=torch.Generator().manual_seed(7))
        self._ids: list[int] = drawn.tolist()
        self._slot = self._allocate(CONTEXT)
        ends = range(512, CONTEXT + 1, 512)
        parts = [self._runner.logits([self._input(self._slot, Rows(end - 512, 512))]).clone() for end in ends]
        self._logits = torch.cat(parts)

    def has_equal_bits(self, places: Sequence[Rows]) -> bool:
        """Compute rows at several places in one forward, and compare them with those of the whole."""
        slots = [self._copied(rows) for rows in places]
        found = self._runner.logits([self._input(*pair) for pair in zip(slots, places, strict=True)])
        for slot in slots:
            self._runner.free(slot)
        return torch.equal(found, torch.cat([self._logits[rows.start : rows.end] for rows in places]))

    def _input(self, slot: int, rows: Rows) -> ForwardInput:
        return input_of(slot, self._ids[: rows.end], rows.start)

    def _copied(self, rows: Rows) -> int:
        slot = self._allocate(rows.end)
        assert not rows.start or self._runner.copy_prefix(self._slot, slot, rows.start)
        return slot

    def _allocate(self, length: int) -> int:
        slot = self._runner.allocate(length)
        assert slot is not None
        return slot
