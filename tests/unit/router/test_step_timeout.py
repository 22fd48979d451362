"""The reusable timeout: it interrupts a step that takes too long, and nothing else."""

import asyncio

import pytest

from router.generation.step_timeout import StepTimeout
from tests.support.clock import in_virtual_time


@in_virtual_time
async def test_a_step_that_takes_too_long_is_interrupted() -> None:
    step_timeout = StepTimeout(0.05)
    with pytest.raises(TimeoutError), step_timeout:
        await asyncio.sleep(10)
    assert asyncio.get_running_loop().time() == pytest.approx(0.05)
    task = asyncio.current_task()
    assert task is not None and not task.cancelling(), "the cancellation must be undone"
    await asyncio.sleep(0)


@in_virtual_time
async def test_every_step_has_the_whole_time() -> None:
    step_timeout = StepTimeout(1.0)
    for _ in range(5):
        with step_timeout:
            await asyncio.sleep(0.3)
    with pytest.raises(TimeoutError), step_timeout:
        await asyncio.sleep(10)
    with step_timeout:
        await asyncio.sleep(0.3)


@in_virtual_time
async def test_a_timer_that_expires_between_two_steps_interrupts_nothing() -> None:
    step_timeout = StepTimeout(0.05)
    with step_timeout:
        pass
    await asyncio.sleep(0.1)
    with pytest.raises(TimeoutError), step_timeout:
        await asyncio.sleep(10)


@in_virtual_time
async def test_a_cancellation_of_the_task_does_not_become_a_timeout() -> None:
    step_timeout = StepTimeout(0.1)

    async def step() -> None:
        with step_timeout:
            await asyncio.sleep(10)

    task = asyncio.create_task(step())
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.2)
    step_timeout.close()


@in_virtual_time
async def test_a_paused_step_has_the_whole_time_after_its_restart() -> None:
    step_timeout = StepTimeout(0.1)
    with step_timeout:
        step_timeout.pause()
        await asyncio.sleep(0.3)
        step_timeout.restart()
    with pytest.raises(TimeoutError), step_timeout:
        step_timeout.pause()
        await asyncio.sleep(0.15)
        step_timeout.restart()
        await asyncio.sleep(10)


@in_virtual_time
async def test_one_timeout_serves_several_tasks_in_turn() -> None:
    step_timeout, turn = StepTimeout(0.05), asyncio.Lock()

    async def step(seconds: float) -> str:
        async with turn:
            try:
                with step_timeout:
                    await asyncio.sleep(seconds)
            except TimeoutError:
                return "late"
        return "done"

    assert await asyncio.gather(step(0.0), step(10.0), step(0.0)) == ["done", "late", "done"]
    step_timeout.close()
