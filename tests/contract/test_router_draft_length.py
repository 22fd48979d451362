"""Rounds without drafts: where drafts cannot pay, and above a number of sequences; over real sockets."""

from pathlib import Path
from typing import Any

import pytest

from flyserve.core.messages import ForwardCosts, Load
from tests.contract.fakes import FakeDrafter, FakeTarget, HashModel
from tests.contract.router_rig import EXACT, FLY, PLAIN, Answer, ids, running

MODEL, LIKE_IT = HashModel(), HashModel(agreement=0.9)
COSTS, SLOW, FAST = ForwardCosts(0.010, 0.012), ForwardCosts(0.020, 0.022), ForwardCosts(0.001, 0.002)
LENGTH = 60


def drafted(answer: Answer) -> list[bool]:
    """Return for each round if it had drafts."""
    return [each.drafted > 0 for each in answer.rounds]


async def test_rounds_have_no_drafts_while_more_sequences_are_open_than_the_limit(model: Path) -> None:
    target, drafter = FakeTarget(MODEL), FakeDrafter(LIKE_IT)

    async def script(number: int) -> None:
        target.reported = Load(sequences=9 if 3 <= number < 6 else 8)

    limited = {"draft_length": {"max": 4, "max_sequences": 8}}
    async with running(model, [target], [drafter], speculation=limited) as rig:
        plain = await rig.generate(PLAIN, LENGTH)
        target.num_steps, target.script = 0, script
        exact = await rig.generate(EXACT, LENGTH)
    had_drafts = drafted(exact)
    assert ids(exact) == ids(plain) and not exact.warnings
    assert had_drafts[1:8] == [True, True, False, False, False, True, True]
    assert drafter.num_opened == 1, "its stream stays open"


@pytest.mark.parametrize("speculation", [{}, {"draft_length": {"max": 3}}], ids=["default", "own length"])
async def test_a_drafter_whose_drafts_cannot_pay_is_not_asked(
    model: Path, speculation: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    target, drafter = FakeTarget(MODEL, costs=COSTS), FakeDrafter(LIKE_IT, costs=SLOW)
    async with running(model, [target], [drafter]) as rig:
        plain = await rig.generate(PLAIN, LENGTH)
        exact, fly = [await rig.generate(mode, LENGTH, speculation=speculation) for mode in (EXACT, FLY)]
        assert (drafter.num_opened, exact.statistics.drafted, fly.statistics.drafted) == (0, 0, 0)
        waits = await rig.generate(FLY, LENGTH, speculation={"reproducible_drafts": True})
    assert ids(exact) == ids(fly) == ids(plain)
    assert [*exact.warnings] == ["no drafter was asked: by the costs of the models its drafts cannot pay"]
    assert "responses are decoded without drafts" in caplog.text
    assert waits.statistics.drafted, "these drafts depend on the request alone"


async def test_predictions_and_faster_drafters_are_still_used(model: Path) -> None:
    slow = FakeDrafter(LIKE_IT, costs=SLOW)
    async with running(model, [FakeTarget(MODEL, costs=COSTS)], [slow]) as rig:
        plain = await rig.generate(PLAIN, LENGTH)
        predicted = await rig.generate(EXACT, LENGTH, prediction=plain.text)
    assert ids(predicted) == ids(plain) and predicted.statistics.predicted_accepted and not slow.num_opened
    fast = FakeDrafter(LIKE_IT, costs=FAST)
    async with running(model, [FakeTarget(MODEL, costs=COSTS)], [fast]) as rig:
        exact = await rig.generate(EXACT, LENGTH)
    assert ids(exact) == ids(plain) and exact.statistics.accepted > LENGTH / 2
