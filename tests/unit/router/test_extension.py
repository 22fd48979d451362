"""The number of tokens that the target decodes in one step without drafts."""

from router.generation.extension import ExtensionLength


def lengths(
    interval_s: float, token_s: float, steps: int, most: int = 1000, decodes_ahead: bool = False
) -> list[int]:
    extension, found = ExtensionLength(interval_s, decodes_ahead), []
    for _ in range(steps):
        found.append(extension.choose(most))
        extension.record(found[-1], found[-1] * token_s)
    return found


def test_it_grows_up_to_the_interval() -> None:
    *growing, last = lengths(0.05, 0.0021, 6)
    assert growing == [1, 2, 4, 8, 16] and last == 23


def test_a_slow_target_decodes_one_token_per_step() -> None:
    assert lengths(0.05, 0.02, 5) == [1] * 5
    assert lengths(0.0, 0.001, 5) == [1] * 5


def test_a_slow_target_that_decodes_ahead_sends_what_fits() -> None:
    assert lengths(0.05, 0.02, 5, decodes_ahead=True) == [1, 2, 2, 2, 2]
    assert lengths(0.05, 0.03, 3, decodes_ahead=True) == lengths(0.0, 0.03, 3, decodes_ahead=True) == [1] * 3


def test_it_keeps_the_budget() -> None:
    assert max(lengths(10.0, 0.001, 12, most=37)) == 37
    assert lengths(10.0, 0.001, 3, most=1) == [1, 1, 1]


def test_a_target_that_becomes_slow_is_followed() -> None:
    extension = ExtensionLength(0.05)
    for _ in range(10):
        extension.record(extension.choose(1000), 0.001)
    for _ in range(40):
        extension.record(number := extension.choose(1000), number * 0.03)
    assert extension.choose(1000) == 1


def extended(extension: ExtensionLength, num_drafted: int | None = None) -> int:
    """Return the tokens of a step of 1 ms per token, after the drafter's answer if there is one."""
    if num_drafted is not None:
        extension.record_draft(num_drafted)
    number = extension.choose(1000)
    extension.record(number, number * 0.001)
    return number


def test_after_empty_drafts_it_starts_small_and_doubles() -> None:
    extension = ExtensionLength(0.05)
    assert [extended(extension) for _ in range(8)][-1] == 50
    assert [extended(extension, 0) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 50, 50]


def test_a_match_resets_it() -> None:
    extension = ExtensionLength(0.05)
    assert [extended(extension, 0) for _ in range(7)][-1] == 50
    extension.record_draft(3)
    assert [extended(extension, 0) for _ in range(3)] == [1, 2, 4]


def test_a_round_that_asks_no_drafter_has_the_usual_number() -> None:
    extension = ExtensionLength(0.05)
    assert [extended(extension) for _ in range(8)][-1] == 50
    assert extended(extension, 0) == 1
    assert [extended(extension) for _ in range(6)] == [2, 4, 8, 16, 32, 50]


def test_text_that_never_repeats_for_long_overflows_nothing() -> None:
    extension = ExtensionLength(0.05)
    assert [extended(extension, 0) for _ in range(200)][-1] == 50
