"""The use of sub-drafters: which sequences look for repeats, and when snippets are requested."""

import pytest

from services.drafter.sub_drafter_use import SubDrafterUse


def share(decisions: list[bool]) -> float:
    return sum(decisions) / len(decisions)


def test_fewer_sequences_look_for_repeats_while_none_repeats_another() -> None:
    use = SubDrafterUse()
    assert share([use.begin_sequence() for _ in range(8)]) == 1
    assert share([use.begin_sequence() for _ in range(80)]) == 0.25
    use.record_repeat()
    assert share([use.begin_sequence() for _ in range(8)]) == 1


def test_few_snippets_are_requested_from_a_sub_drafter_that_has_none() -> None:
    use = SubDrafterUse()
    assert use.should_fetch(), "nothing is known yet"
    for _ in range(60):
        use.record_snippets(0)
    assert share([use.should_fetch() for _ in range(130)]) == pytest.approx(1 / 13)
    use.record_snippets(2)
    assert use.should_fetch()
