"""The number of tokens that the target decodes in one step without drafts."""

from flyserve.core.messages import ForwardCosts, StepTimes
from flyserve.core.round_record import RoundRecord
from flyserve.core.types import Decision
from router.generation.extension import ExtensionLength


def decoded(number: int, forward_s: float, prefill_tokens: int = 0) -> RoundRecord:
    """Return a round in which the target decoded some tokens by itself."""
    times = StepTimes(forward_ns=round(forward_s * 1e9), prefill_tokens=prefill_tokens)
    return RoundRecord(
        is_last=False,
        decision=Decision(()),
        started_s=0.0,
        answered_s=9.0,
        answer_s=9.0,
        times=times,
        num_decoded=number,
    )


def lengths(
    interval_s: float, token_s: float, steps: int, most: int = 1000, decodes_ahead: bool = False
) -> list[int]:
    extension, found = ExtensionLength(interval_s, decodes_ahead=decodes_ahead), []
    for _ in range(steps):
        found.append(extension.choose(most))
        extension.record(decoded(found[-1], found[-1] * token_s))
    return found


def test_it_grows_up_to_the_interval() -> None:
    *growing, last = lengths(0.05, 0.0021, 6)
    assert growing == [1, 2, 4, 8, 16] and last == 23


def test_a_slow_target_decodes_one_token_per_step() -> None:
    assert lengths(0.05, 0.02, 5) == [1] * 5
    assert lengths(0.0, 0.001, 5) == [1] * 5


def test_rows_that_are_computed_one_by_one_add_up() -> None:
    assert ForwardCosts(0.010, 0.080).rows_add_up
    assert not ForwardCosts(0.010, 0.030).rows_add_up and not ForwardCosts(0.010, 0.010).rows_add_up


def test_a_slow_target_that_decodes_ahead_sends_what_fits() -> None:
    assert lengths(0.05, 0.02, 5, decodes_ahead=True) == [1, 2, 2, 2, 2]
    assert lengths(0.05, 0.03, 3, decodes_ahead=True) == lengths(0.0, 0.03, 3, decodes_ahead=True) == [1] * 3


def test_it_keeps_the_budget() -> None:
    assert max(lengths(10.0, 0.001, 12, most=37)) == 37
    assert lengths(10.0, 0.001, 3, most=1) == [1, 1, 1]


def test_a_target_that_becomes_slow_is_followed() -> None:
    extension = ExtensionLength(0.05)
    for _ in range(10):
        extension.record(decoded(extension.choose(1000), 0.001))
    for _ in range(40):
        extension.record(decoded(number := extension.choose(1000), number * 0.03))
    assert extension.choose(1000) == 1


def test_it_need_not_grow_to_what_other_responses_measured() -> None:
    extension = ExtensionLength(0.05, usual_s=0.001)
    assert extension.choose(1000) == 1, "the first token is not kept back"
    assert [extension.choose(1000), extension.choose(7)] == [50, 7]


def test_its_own_steps_count_more_than_those_of_other_responses() -> None:
    extension = ExtensionLength(0.05, usual_s=0.001)
    extension.record(decoded(extension.choose(1000), 0.03))
    extension.record(decoded(1, 0.001, prefill_tokens=9))  # a prompt, computed again
    assert extension.choose(1000) == 1


def test_a_short_step_does_not_shorten_the_next_one() -> None:
    extension = ExtensionLength(0.05, usual_s=0.001)
    extension.record(decoded(extension.choose(1000), 0.001))
    assert extension.choose(1000) == 50
