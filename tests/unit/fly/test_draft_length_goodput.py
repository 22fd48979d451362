"""Goodput control against every fixed length, on a virtual clock: the cells that take little time."""

import pytest

from tests.support.goodput_cells import check_cell


@pytest.mark.parametrize(("curve", "callers"), [("linear", 1), ("expensive drafter", 4)])
def test_it_comes_close_to_the_best_fixed_length(curve: str, callers: int) -> None:
    check_cell(curve, callers)
