"""No stalls: a step that arrives during prefills is in the next forward."""

from typing import Any

import pytest

from flyserve.core.messages import Role
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner
from tests.support.core_driver import CoreDriver


@pytest.mark.parametrize("num_prefills", [1, 2, 12])
@pytest.mark.parametrize("arrival", [0, 1, 3, 4, 5, 9])
async def test_a_verification_during_long_prefills_is_in_the_next_forward(
    num_prefills: int, arrival: int
) -> None:
    driver = CoreDriver(SimulatedRunner(SimulatedConfig(context_length=8192), Role.TARGET, 64, 200_000))

    def submit(token: int, num_tokens: int, num_outputs: int) -> Any:
        return driver.score(driver.open([token] * num_tokens, decided=0), num_outputs)

    prefills = [submit(20 + index, 4000, 1) for index in range(num_prefills)]
    for _ in range(arrival):
        assert sum(len(item.tokens) for item in driver.turn()) <= 512
    verifications = [submit(40 + index, 16, 16) for index in range(16)]
    driver.turn()
    assert all(future.result is not None for future in verifications)
    assert not any(future.result for future in prefills)
