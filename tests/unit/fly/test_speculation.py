"""A growing response, against a deterministic language model."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fly.presets import EXACT, PRESETS
from fly.speculation import Speculation
from fly.types import Evidence, FinishReason, Position, ResponseLimits, Verdict

END = 2


def next_token(ids: Sequence[int]) -> int:
    """A deterministic language model: the next token is a hash of the last two."""
    return 3 + (7 * ids[-1] + 3 * ids[-2] + len(ids)) % 11


def judge(spec: Speculation, drafts: Sequence[int]) -> Evidence:
    ids = [*spec.sequence.ids]
    positions = []
    for draft in drafts:
        positions.append(Position(draft, next_token(ids), entropy=1.0))
        ids.append(draft)
    return Evidence(tuple(positions), next_token(ids), 0.0)


def plain(prompt: list[int], count: int) -> list[int]:
    ids = [*prompt]
    for _ in range(count):
        ids.append(next_token(ids))
    return ids[len(prompt) :]


@given(st.lists(st.lists(st.integers(3, 13), max_size=8), min_size=1), st.integers(1, 30))
def test_exact_speculation_emits_the_tokens_of_plain_decoding(drafts: list[list[int]], budget: int) -> None:
    spec = Speculation([5, 6], EXACT, ResponseLimits(budget))
    emitted: list[int] = []
    for draft in drafts * budget:
        decision = spec.apply(judge(spec, draft[: spec.max_drafts]))
        emitted.extend(decided.id for decided in decision.decided)
        if spec.finish_reason:
            break
    assert spec.finish_reason is FinishReason.LENGTH
    assert emitted == plain([5, 6], budget)
    assert spec.sequence.ids == [5, 6, *emitted]
    assert spec.statistics.emitted == budget


def test_the_response_ends_after_the_first_ending_token() -> None:
    spec = Speculation([5, 6], EXACT, ResponseLimits(50, frozenset({END})))
    positions = tuple(Position(token, token, 0.0) for token in (7, END, 8))
    decision = spec.apply(Evidence(positions, 9, 0.0))
    assert [decided.id for decided in decision.decided] == [7, END]
    assert spec.finish_reason is FinishReason.STOP_TOKEN
    assert spec.statistics.emitted == 2
    assert spec.sequence.ids == [5, 6, 7, END]


@pytest.mark.parametrize("budget", [1, 2, 3])
def test_the_budget_cuts_a_longer_round(budget: int) -> None:
    spec = Speculation([5, 6], EXACT, ResponseLimits(budget))
    positions = tuple(Position(token, token, 0.0) for token in (7, 8, 9))
    decision = spec.apply(Evidence(positions, 10, 0.0))
    assert len(decision.decided) == budget
    assert spec.finish_reason is FinishReason.LENGTH


def test_a_stop_string_ends_the_response_before_a_later_ending_token() -> None:
    spec = Speculation(
        [5, 6], EXACT, ResponseLimits(50, frozenset({END})), lambda ids: 1 if 7 in ids else None
    )
    decision = spec.apply(Evidence((Position(7, 7, 0.0), Position(END, END, 0.0)), 9, 0.0))
    assert [decided.id for decided in decision.decided] == [7]
    assert spec.finish_reason is FinishReason.STOP_STRING


def test_statistics_count_rounds_verdicts_and_tau() -> None:
    spec = Speculation([5, 6], PRESETS["official"], ResponseLimits(100))
    positions = [Position(20 + j, 20 + j, 1.0) for j in range(15)]
    positions[2] = Position(22, 40, 1.0)
    spec.apply(Evidence(tuple(positions), 9, 0.0))
    spec.apply(Evidence((), 9, 0.0))
    spec.apply(Evidence((Position(20, 21, 0.0),), 9, 0.0))
    statistics = spec.statistics
    assert (statistics.rounds, statistics.drafted, statistics.emitted) == (3, 16, 18)
    assert (statistics.accepted, statistics.rescued) == (15, 1)
    assert statistics.tau == pytest.approx(17 / 2)


def test_verdicts_distinguish_drafted_from_chosen_tokens() -> None:
    spec = Speculation([5, 6], EXACT, ResponseLimits(100))
    decision = spec.apply(Evidence((Position(20, 20, 1.0),), 9, 0.0))
    assert [decided.verdict for decided in decision.decided] == [Verdict.EXACT, Verdict.BONUS]
