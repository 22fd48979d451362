"""Attention with capped scores or sinks: a few rows at a time over a long context."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from services.engine.forward import attend
from services.engine.forward.attend import attend_eager

HEADS, KV_HEADS, DIM = 8, 2, 16


class Sizes(TorchDispatchMode):
    """Records the largest tensor that an operator returns."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **kwargs or {})
        if isinstance(found, torch.Tensor):
            self.largest = max(self.largest, found.numel())
        return found


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape) + shape[0]))


@pytest.mark.parametrize("kwargs", [{"softcap": 2.0}, {"sinks": drawn(HEADS)}])
@pytest.mark.parametrize("is_masked", [False, True])
def test_rows_in_parts_attend_as_all_at_once(
    kwargs: dict[str, Any], is_masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_rows, length = 50, 700
    query, memory = drawn(1, HEADS, num_rows, DIM), drawn(2, KV_HEADS, length, DIM)
    mask = drawn(num_rows, length) if is_masked else None
    arguments = (query, memory[:1], memory[1:], mask, None)
    whole = attend_eager(*arguments, **kwargs)
    monkeypatch.setattr(attend, "_MOST_SCORES", 9 * HEADS * length)
    with Sizes() as sizes:
        parts = attend_eager(*arguments, **kwargs, multiple=4)
    torch.testing.assert_close(parts, whole)
    assert sizes.largest <= 8 * HEADS * (length + 1)


def test_the_scores_of_many_rows_over_a_long_context_stay_below_their_limit() -> None:
    query = torch.empty(1, 64, 256, 64, device="meta")
    keys = torch.empty(1, 8, 65_536, 64, device="meta")
    with Sizes() as sizes:
        found = attend_eager(query, keys, keys, None, None, sinks=torch.empty(64, device="meta"))
    assert found.shape == query.shape
    assert sizes.largest <= 1.01 * attend._MOST_SCORES
