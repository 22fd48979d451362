"""Equal prompts that arrive together are computed once, whatever happens to the one that computes them."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from fly.messages import Open
from fly.request import SamplingParams
from fly.sequence import SequenceUpdate
from services.engine.base import ForwardInput
from services.engine.core import EngineCore
from services.engine.future import EngineFuture
from services.engine.memory.kv_cache import ContiguousKvCache, KvCache
from services.engine.memory.paged_kv_cache import PagedKvCache
from services.engine.scheduling.scheduler import IDLE_PRIORITY, ScheduledJob, forward_inputs
from services.engine.scheduling.shared_prefills import share_prefills
from services.engine.sequence import EngineSequence
from services.engine.simulation.runner import SimulatedConfig
from tests.support.clock import VirtualClock
from tests.support.remembering import RememberingRunner

CONFIG = SimulatedConfig(vocab_size=4096, context_length=16_384)
PROMPT = [(index * 7) % 4000 + 20 for index in range(8192)]
KV_CACHES = [ContiguousKvCache, PagedKvCache]
Step = tuple[EngineSequence, EngineFuture]


class Driver:
    """Drives an engine's core, one forward per turn, over memory whose contents are checked."""

    def __init__(self, kv_cache: KvCache) -> None:
        self.runner = RememberingRunner(CONFIG, kv_cache)
        self.core = EngineCore(self.runner, 512, 100, VirtualClock())

    def start(
        self, ids: Sequence[int], priority: int = 0, decided: int | None = None, salt: str = ""
    ) -> Step:
        opened, scored = EngineFuture(), EngineFuture()
        self.core.open(Open("r", len(ids), priority=max(priority, -9), cache_salt=salt), opened)
        sequence = opened.result
        assert isinstance(sequence, EngineSequence)
        sequence.apply(SequenceUpdate(1, 0, tuple(ids), len(ids) if decided is None else decided, 0))
        self.core.submit(sequence.score(), priority, 0, scored)
        return sequence, scored

    def turn(self) -> list[ForwardInput]:
        batch = self.core.next_batch()
        inputs = forward_inputs(batch)
        self.core.complete(batch, self.runner.forward(inputs), 0, 1)
        return inputs

    def finish(self, steps: Sequence[Step]) -> None:
        for _ in range(500):
            if all(future.result or future.error for _, future in steps):
                return
            self.turn()
        raise AssertionError("some prefill does not end")


def live(kv_cache: KvCache, story: Callable[[Driver], None]) -> None:
    async def session() -> None:
        story(Driver(kv_cache))

    asyncio.run(session())


@pytest.mark.parametrize("kind", KV_CACHES)
@pytest.mark.parametrize("number", [2, 8])
def test_equal_prompts_are_computed_once(kind: type[KvCache], number: int) -> None:
    def story(driver: Driver) -> None:
        steps = [driver.start(PROMPT) for _ in range(number)]
        driver.finish(steps)
        assert driver.core.load().prefill_tokens <= 1.1 * len(PROMPT)
        choices = {future.result[0].choices for _, future in steps}
        assert len(choices) == 1
        # Each of the others copied the whole prefix once, not once for each chunk.
        assert len(driver.runner.copies) == number - 1

    live(kind(100_000, 8), story)  # type: ignore[call-arg]


def test_prompts_with_a_common_beginning_compute_it_once() -> None:
    def story(driver: Driver) -> None:
        steps = [driver.start([*PROMPT[:4096], *([30 + index] * 1000)]) for index in range(4)]
        driver.finish(steps)
        assert driver.core.load().prefill_tokens <= 1.05 * (4096 + 4 * 1000)

    live(ContiguousKvCache(100_000, 8), story)


def test_other_salts_and_undecided_tokens_wait_for_nothing() -> None:
    def story(driver: Driver) -> None:
        driver.start(PROMPT[:1000], salt="a")
        driver.start(PROMPT[:1000], salt="b")
        assert len(driver.turn()) == 2
        driver.start(PROMPT[2000:3000], decided=0)
        driver.start(PROMPT[2000:3000], decided=0)
        slots = {item.slot for _ in range(6) for item in driver.turn()}
        assert slots == {0, 1, 2, 3}
        assert driver.core.load().reused_tokens == 0

    live(ContiguousKvCache(100_000, 8), story)


def end_by_cancel(driver: Driver, step: Step) -> None:
    driver.core.cancel(step[1])


def end_by_close(driver: Driver, step: Step) -> None:
    driver.core.close(step[0])


def end_by_fault(driver: Driver, step: Step) -> None:
    batch = driver.core.next_batch()
    assert [item.slot for item in forward_inputs(batch)] == [step[0].slot]
    driver.core.fail(batch, ArithmeticError())


@pytest.mark.parametrize("end", [end_by_cancel, end_by_close, end_by_fault])
@pytest.mark.parametrize("turns", [0, 1, 7])
def test_another_one_continues_if_the_computing_one_ends(
    end: Callable[[Driver, Step], None], turns: int
) -> None:
    def story(driver: Driver) -> None:
        first, *others = [driver.start(PROMPT) for _ in range(4)]
        for _ in range(turns):
            assert [item.slot for item in driver.turn()] == [first[0].slot]
        end(driver, first)
        driver.finish(others)
        assert driver.core.load().prefill_tokens <= 1.1 * len(PROMPT)

    live(ContiguousKvCache(100_000, 8), story)


@pytest.mark.parametrize("kind", KV_CACHES)
def test_another_one_continues_if_the_computing_one_is_preempted(kind: type[KvCache]) -> None:
    def story(driver: Driver) -> None:
        big, scored = driver.start([50] * 500)
        driver.finish([(big, scored)])
        first, second = driver.start(PROMPT[:300], priority=-1), driver.start(PROMPT[:300])
        driver.turn()
        big.extend([51] * 200)
        grown = EngineFuture()
        driver.core.submit(big.score(), 0, 0, grown)
        driver.finish([second, (big, grown)])
        assert driver.core.load().preemptions > 0
        driver.core.close(big)
        driver.finish([first])

    live(kind(1200, 8), story)  # type: ignore[call-arg]


def test_a_higher_priority_never_waits_for_a_lower_one() -> None:
    def story(driver: Driver) -> None:
        low = driver.start(PROMPT, priority=-1)
        driver.turn()
        idle = driver.start(PROMPT, priority=IDLE_PRIORITY)
        high = driver.start(PROMPT)
        assert [item.slot for item in driver.turn()] == [high[0].slot]
        driver.finish([high])
        driver.finish([low, idle])
        assert driver.core.load().prefill_tokens <= 1.1 * len(PROMPT)

    live(ContiguousKvCache(100_000, 8), story)


def test_some_job_always_runs() -> None:
    """Chains of prefixes: each of them needs a block that another one computes."""

    def story(driver: Driver) -> None:
        steps = [driver.start(PROMPT[: 16 * length + 3]) for length in (40, 3, 90, 1, 40, 64, 2, 17)]
        while any(future.result is None for _, future in steps):
            assert driver.turn()

    live(ContiguousKvCache(100_000, 8), story)


def test_jobs_without_blocks_to_compute_are_not_held() -> None:
    item = ForwardInput(0, 5, [1], 1, SamplingParams(), 0, [1])

    def nothing() -> object:
        yield item

    jobs = [ScheduledJob(nothing(), 0, job_id, 0, next_input=item) for job_id in range(2)]  # type: ignore[arg-type]
    shared = share_prefills(jobs, lambda item: 0)
    assert not shared.held and not shared.reusable
