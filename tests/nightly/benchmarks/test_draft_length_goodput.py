"""Goodput control against every fixed length, on a virtual clock: all cost curves and numbers of callers."""

import pytest

from tests.support.goodput_cells import CURVES, check_cell


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("callers", [1, 4, 16, 64])
def test_it_comes_close_to_the_best_fixed_length_and_is_not_worse_than_plain_decoding(
    curve: str, callers: int
) -> None:
    check_cell(curve, callers)
