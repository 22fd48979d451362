"""Equal prompts that arrive together are computed once, whatever happens to the one that computes them."""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from flyserve.core.messages import Opened
from services.engine.future import EngineFuture
from services.engine.memory.kv_cache import ContiguousKvCache, KvCache
from services.engine.memory.paged_kv_cache import PagedKvCache
from services.engine.scheduling.scheduler import IDLE_PRIORITY, forward_inputs
from services.engine.simulation.runner import SimulatedConfig
from tests.support.core_driver import CoreDriver, Step
from tests.support.remembering import RememberingRunner

CONFIG = SimulatedConfig(vocab_size=4096, context_length=16_384)
PROMPT = [(index * 7) % 4000 + 20 for index in range(8192)]
KV_CACHES = [ContiguousKvCache, PagedKvCache]


def driver_of(kv_cache: type[KvCache] = ContiguousKvCache, kv_tokens: int = 100_000) -> CoreDriver:
    """Return a driver over memory whose contents are checked."""
    return CoreDriver(RememberingRunner(CONFIG, kv_cache(kv_tokens, 8)), 100)  # type: ignore[call-arg]


def start(
    driver: CoreDriver, ids: Sequence[int], priority: int = 0, decided: int | None = None, salt: str = ""
) -> Step:
    sequence = driver.open(ids, decided, priority=max(priority, -9), cache_salt=salt)
    return sequence, driver.score(sequence, priority=priority)


def finish(driver: CoreDriver, steps: Sequence[Step]) -> None:
    driver.finish(*(scored for _, scored in steps))


@pytest.mark.parametrize("kind", KV_CACHES)
@pytest.mark.parametrize("number", [2, 8])
async def test_equal_prompts_are_computed_once(kind: type[KvCache], number: int) -> None:
    driver = driver_of(kind)
    steps = [start(driver, PROMPT) for _ in range(number)]
    finish(driver, steps)
    assert driver.core.load().prefill_tokens <= 1.1 * len(PROMPT)
    choices = {future.result[0].choices for _, future in steps}
    assert len(choices) == 1
    # Each of the others copied the whole prefix once, not once for each chunk.
    assert len(driver.runner.copies) == number - 1


async def test_all_that_wait_for_a_long_prompt_hear_of_its_forwards() -> None:
    driver = driver_of()
    long, held, idle = start(driver, PROMPT), start(driver, PROMPT), start(driver, PROMPT, IDLE_PRIORITY)
    driver.core.take_deliveries()
    for _ in range(8):
        driver.turn()
        heard = Counter(deliver.args[0] for _, deliver in driver.core.take_deliveries())  # type: ignore[attr-defined]
        assert heard == {Opened(): 2}, "of the one that computes it, and of the one that reuses it"
    driver.finish(long[1], held[1])
    driver.core.take_deliveries()
    decoding = driver.score(long[0])
    driver.turn()
    assert [deliver for _, deliver in driver.core.take_deliveries()] == [decoding.deliver]
    assert idle[1].result is None


@pytest.mark.parametrize(
    ("kind", "length", "most"),
    [(ContiguousKvCache, 8192, 1), (ContiguousKvCache, 1040, 4), (PagedKvCache, 8192, 7)],
)
@pytest.mark.parametrize("is_cached", [False, True])
async def test_few_prefixes_are_copied_between_two_forwards(
    kind: type[KvCache], length: int, most: int, is_cached: bool
) -> None:
    driver, copied = driver_of(kind), [0]
    if is_cached:
        finish(driver, [earlier := start(driver, PROMPT[:length])])
        driver.core.close(earlier[0])
    number = 7 + (not is_cached)
    steps = [start(driver, PROMPT[:length]) for _ in range(number)]
    while any(future.result is None for _, future in steps):
        assert driver.turn()
        copied.append(len(driver.runner.copies))
    each_turn = [after - before for before, after in itertools.pairwise(copied)]
    assert (max(each_turn), sum(each_turn)) == (most, 7)


@pytest.mark.parametrize("priority", [0, 1])
async def test_a_copy_that_waits_comes_before_those_of_later_requests(priority: int) -> None:
    driver = driver_of()
    finish(driver, [earlier := start(driver, PROMPT)])
    driver.core.close(earlier[0])
    start(driver, PROMPT)
    _, waits = start(driver, PROMPT, priority)
    for _ in range(4):
        sequence, _ = start(driver, PROMPT)
        driver.turn()
        driver.core.close(sequence)
    assert waits.result is not None


async def test_prompts_with_a_common_beginning_compute_it_once() -> None:
    driver = driver_of()
    steps = [start(driver, [*PROMPT[:4096], *([30 + index] * 1000)]) for index in range(4)]
    finish(driver, steps)
    assert driver.core.load().prefill_tokens <= 1.05 * (4096 + 4 * 1000)


async def test_other_salts_and_undecided_tokens_wait_for_nothing() -> None:
    driver = driver_of()
    start(driver, PROMPT[:1000], salt="a")
    start(driver, PROMPT[:1000], salt="b")
    assert len(driver.turn()) == 2
    start(driver, PROMPT[2000:3000], decided=0)
    start(driver, PROMPT[2000:3000], decided=0)
    slots = {item.slot for _ in range(6) for item in driver.turn()}
    assert slots == {0, 1, 2, 3}
    assert driver.core.load().reused_tokens == 0


def end_by_cancel(driver: CoreDriver, step: Step) -> None:
    driver.core.cancel(step[1])


def end_by_close(driver: CoreDriver, step: Step) -> None:
    driver.core.close(step[0])


def end_by_fault(driver: CoreDriver, step: Step) -> None:
    batch = driver.core.next_batch()
    assert [item.slot for item in forward_inputs(batch)] == [step[0].slot]
    driver.core.fail(batch, ArithmeticError())


@pytest.mark.parametrize("end", [end_by_cancel, end_by_close, end_by_fault])
@pytest.mark.parametrize("turns", [0, 1, 7])
async def test_another_one_continues_if_the_computing_one_ends(
    end: Callable[[CoreDriver, Step], None], turns: int
) -> None:
    driver = driver_of()
    first, *others = [start(driver, PROMPT) for _ in range(4)]
    for _ in range(turns):
        assert [item.slot for item in driver.turn()] == [first[0].slot]
    end(driver, first)
    finish(driver, others)
    assert driver.core.load().prefill_tokens <= 1.1 * len(PROMPT)


@pytest.mark.parametrize("kind", KV_CACHES)
async def test_another_one_continues_if_the_computing_one_is_preempted(kind: type[KvCache]) -> None:
    driver = driver_of(kind, 1200)
    big, scored = start(driver, [50] * 500)
    finish(driver, [(big, scored)])
    first, second = start(driver, PROMPT[:300], priority=-1), start(driver, PROMPT[:300])
    driver.turn()
    big.extend([51] * 200)
    grown = EngineFuture()
    driver.core.submit(big.score(), 0, 0, grown)
    finish(driver, [second, (big, grown)])
    assert driver.core.load().preemptions > 0
    driver.core.close(big)
    finish(driver, [first])


async def test_a_higher_priority_never_waits_for_a_lower_one() -> None:
    driver = driver_of()
    low = start(driver, PROMPT, priority=-1)
    driver.turn()
    idle = start(driver, PROMPT, priority=IDLE_PRIORITY)
    high = start(driver, PROMPT)
    assert [item.slot for item in driver.turn()] == [high[0].slot]
    finish(driver, [high])
    finish(driver, [low, idle])
    assert driver.core.load().prefill_tokens <= 1.1 * len(PROMPT)


async def test_some_job_always_runs() -> None:
    """Chains of prefixes: each of them needs a block that another one computes."""
    driver = driver_of()
    steps = [start(driver, PROMPT[: 16 * length + 3]) for length in (40, 3, 90, 1, 40, 64, 2, 17)]
    while any(future.result is None for _, future in steps):
        assert driver.turn()
