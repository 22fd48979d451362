"""The order of admission, and the length that sequences are expected to reach."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyserve.core.messages import Open
from services.engine.scheduling.admission_queue import MAX_PASSES, AdmissionQueue, GrowthEstimate


def admitted(queue: AdmissionQueue[str], room: int, sizes: dict[str, int]) -> list[str]:
    taken: list[str] = []

    def try_admit(item: str) -> bool:
        nonlocal room
        if sizes.get(item, 1) > room:
            return False
        room -= sizes.get(item, 1)
        taken.append(item)
        return True

    queue.admit(try_admit)
    return taken


def test_priority_then_preempted_then_arrival() -> None:
    queue = AdmissionQueue[str]()
    queue.add("first", 0)
    queue.add("second", 0)
    queue.add("preempted", 0, is_preempted=True)
    queue.add("urgent", 3)
    queue.add("low preempted", -1, is_preempted=True)
    order = ["urgent", "preempted", "first", "second", "low preempted"]
    assert queue.items() == order
    assert admitted(queue, 5, {}) == order and len(queue) == 0


def test_small_items_pass_a_large_one_a_bounded_number_of_times() -> None:
    queue, sizes = AdmissionQueue[str](), {"large": 10}
    queue.add("large", 0)
    passed = 0
    for index in range(2 * MAX_PASSES):
        queue.add(f"small {index}", 0)
        passed += len(admitted(queue, 1, sizes))
    assert passed == MAX_PASSES
    assert admitted(queue, 12, sizes) == ["large", f"small {MAX_PASSES}", f"small {MAX_PASSES + 1}"]


def test_one_offer_passes_a_large_one_no_more_often_than_many() -> None:
    queue, sizes = AdmissionQueue[str](), {"large": 100}
    for name in ("large", *(f"small {index}" for index in range(50))):
        queue.add(name, 0)
    assert len(admitted(queue, 50, sizes)) == MAX_PASSES


def test_removed_items_are_not_offered() -> None:
    queue = AdmissionQueue[str]()
    queue.add("one", 0)
    queue.add("two", 0)
    queue.remove("one")
    queue.remove("one")
    assert admitted(queue, 5, {}) == ["two"]


@given(st.integers(0, 2**32))
def test_every_item_is_admitted_after_a_bounded_number_of_others(seed: int) -> None:
    """At constant load, no item of the highest priority is passed more than `MAX_PASSES` times."""
    draw, queue, sizes, waited = Random(seed), AdmissionQueue[str](), dict[str, int](), dict[str, int]()
    for number in range(200):
        name = str(number)
        sizes[name], waited[name] = draw.randint(1, 10), 0
        queue.add(name, 0)
        before = queue.items()
        for chosen in admitted(queue, draw.randint(0, 10), sizes):
            for name in before[: before.index(chosen)]:
                waited[name] += 1
            before.remove(chosen)
    assert max(waited.values()) <= MAX_PASSES


def test_growth_is_assumed_to_be_full_until_others_have_finished() -> None:
    growth, opening = GrowthEstimate(), Open("r", 100, max_new_tokens=400)
    assert growth.expected_length(opening, 0) == growth.expected_length(opening, 300) == 500
    for _ in range(60):
        growth.record(opening, 200)
    assert growth.expected_length(opening, 0) == pytest.approx(200, abs=1)
    assert growth.expected_length(opening, 150) == pytest.approx(200, abs=1)
    assert growth.expected_length(opening, 300) == pytest.approx(300 + 200 / 4, abs=1)
    assert growth.expected_length(opening, 500) == 500


def test_unknown_growth_is_that_of_finished_sequences() -> None:
    growth, opening = GrowthEstimate(), Open("r", 100)
    assert growth.expected_length(opening, 0) == 100
    growth.record(Open("r", 10), 90)
    assert growth.expected_length(opening, 150) == 180
    assert growth.expected_length(opening, 190) == 270


def test_a_sequence_that_was_never_computed_teaches_nothing() -> None:
    growth, opening = GrowthEstimate(), Open("r", 100, max_new_tokens=400)
    growth.record(opening, 0)
    assert growth.expected_length(opening, 0) == 500


@given(
    st.integers(0, 1000),
    st.integers(0, 1000),
    st.integers(0, 3000),
    st.lists(st.integers(0, 2000), max_size=9),
)
def test_the_expected_length_is_between_the_present_and_the_longest(
    prompt: int, new: int, length: int, finished: list[int]
) -> None:
    growth, opening = GrowthEstimate(), Open("r", prompt, max_new_tokens=new)
    for each in finished:
        growth.record(opening, each)
    expected = growth.expected_length(opening, length)
    assert expected >= max(length, prompt)
    if new:
        assert expected <= max(length, prompt + new)
