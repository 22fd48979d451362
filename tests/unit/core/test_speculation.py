"""Whole responses under every rule, with and without carried windows: decided tokens never change."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyserve.core.presets import EXACT, PRESETS
from flyserve.core.speculation import Speculation
from flyserve.core.types import (
    Evidence,
    FinishReason,
    FlyRule,
    Position,
    RejectionReason,
    ResponseLimits,
    TailPolicy,
    Token,
    Verdict,
)

CARRY = FlyRule(threshold=0.3, window=6, min_following=6, tail=TailPolicy.CARRY, guard_stops=True)
END = 2
PROMPT = [5, 6]
_MULTIPLIER = 6364136223846793005


@dataclass(frozen=True)
class TableModel:
    """A language model whose tokens and entropies depend on the last two tokens; some end the response."""

    seed: int

    def next_token(self, ids: Sequence[int]) -> int:
        drawn = self._draw(ids, 1)
        return END if drawn % 29 == 0 else 3 + drawn % 8

    def entropy(self, ids: Sequence[int]) -> float:
        return 1.0 if self._draw(ids, 2) % 4 else 0.0

    def gap(self, ids: Sequence[int]) -> float:
        return 0.4 if self._draw(ids, 3) % 4 else 0.5

    def _draw(self, ids: Sequence[int], domain: int) -> int:
        value = self.seed * 31 + domain
        for number in (ids[-1], ids[-2], len(ids)):
            value = (value * _MULTIPLIER + number + 1442695040888963407) % (1 << 64)
        return value >> 33


@dataclass
class Played:
    """A whole response, round by round."""

    spec: Speculation
    rounds: list[tuple[Token, ...]] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> list[Token]:
        return [token for decided in self.rounds for token in decided]


def judge(model: TableModel, spec: Speculation, errors: Sequence[bool]) -> Evidence:
    """Return the evidence on a draft that differs from the model at the positions of `errors`."""
    ids, positions = [*spec.sequence.ids], []
    for has_error in errors:
        choice = model.next_token(ids)
        token = 3 + (choice + 1) % 8 if has_error else choice
        positions.append(Position(token, choice, model.entropy(ids), logprob_gap=model.gap(ids)))
        ids.append(token)
    return Evidence(tuple(positions), model.next_token(ids), model.entropy(ids))


def play(model: TableModel, rule: FlyRule, drafts: list[list[bool]], budget: int) -> Played:
    """Repeat the drafts until the response ends; check in each round that nothing is rolled back."""
    spec = Speculation(PROMPT, rule, ResponseLimits(budget, frozenset({END})))
    played = Played(spec)
    while spec.finish_reason is None:
        assert spec.max_drafts >= 0
        errors = drafts[len(played.rounds) % len(drafts)][: spec.max_drafts]
        decision = spec.apply(judge(model, spec, errors))
        played.rounds.append(decision.decided)
        played.drafted.append(len(errors))
        ids = [*PROMPT, *(decided.id for decided in played.tokens)]
        assert spec.sequence.ids == [*ids, *decision.provisional]
        assert spec.decided_length == len(ids)
        assert decision.decided or decision.provisional
        assert len(spec.sequence) - len(PROMPT) <= budget
    return played


RULES = st.builds(
    lambda preset, window, carry_after, strict: replace(
        preset, window=window, min_following=window, carry_after=carry_after, strict_prefix_tokens=strict
    ),
    st.sampled_from([*PRESETS.values(), replace(PRESETS["official"], tail=TailPolicy.CARRY)]),
    st.integers(1, 7),
    st.integers(0, 4),
    st.integers(0, 3),
)
MODELS = st.builds(TableModel, st.integers(0, 10_000))
DRAFTS = st.lists(st.lists(st.sampled_from([False] * 5 + [True]), max_size=9), min_size=1, max_size=6)
BUDGETS = st.integers(1, 60)


@given(MODELS, RULES, DRAFTS, BUDGETS)
def test_every_token_is_the_models_choice_or_a_rescue(
    model: TableModel, rule: FlyRule, drafts: list[list[bool]], budget: int
) -> None:
    ids = [*PROMPT]
    for decided in play(model, rule, drafts, budget).tokens:
        assert decided.choice == model.next_token(ids)
        assert decided.entropy == model.entropy(ids)
        assert (decided.id != decided.choice) == (decided.verdict is Verdict.RESCUED)
        ids.append(decided.id)


@given(MODELS, RULES, DRAFTS, BUDGETS)
def test_no_token_follows_an_ending_token_or_exceeds_the_budget(
    model: TableModel, rule: FlyRule, drafts: list[list[bool]], budget: int
) -> None:
    played = play(model, rule, drafts, budget)
    ids = [decided.id for decided in played.tokens]
    assert END not in ids[:-1] and len(ids) <= budget
    if played.spec.finish_reason is FinishReason.LENGTH:
        assert len(ids) == budget and ids[-1] != END
    else:
        assert (played.spec.finish_reason, ids[-1]) == (FinishReason.STOP_TOKEN, END)


@given(MODELS, RULES, DRAFTS, st.integers(1, 20))
def test_a_budget_that_changes_is_neither_exceeded_nor_missed(
    model: TableModel, rule: FlyRule, drafts: list[list[bool]], room: int
) -> None:
    spec, number = Speculation(PROMPT, rule, ResponseLimits(60, frozenset({END}))), 0
    while spec.finish_reason is None:
        if number == 2:
            spec.limit(len(spec.sequence) - len(PROMPT) + room)
        spec.apply(judge(model, spec, drafts[number % len(drafts)][: spec.max_drafts]))
        number += 1
    if spec.finish_reason is FinishReason.LENGTH and number > 2:
        assert spec.tokens_left == 0 and spec.decided_length == len(spec.sequence)


def test_a_response_that_is_ended_keeps_its_decided_tokens_alone() -> None:
    spec = Speculation(PROMPT, CARRY, ResponseLimits(100))
    matches = [Position(token, token, 1.0) for token in (10, 11, 12)]
    spec.apply(Evidence((*matches, Position(7, 8, 1.0), *matches), 20, 0.0))
    assert not spec.end().decided and spec.finish_reason is FinishReason.LENGTH
    assert spec.sequence.ids == [*PROMPT, 10, 11, 12] and spec.is_settled


@given(MODELS, DRAFTS, BUDGETS)
def test_exact_speculation_emits_the_tokens_of_plain_decoding(
    model: TableModel, drafts: list[list[bool]], budget: int
) -> None:
    exact, plain = play(model, EXACT, drafts, budget), play(model, EXACT, [[]], budget)
    assert [t.id for t in exact.tokens] == [t.id for t in plain.tokens]
    assert {t.verdict for t in plain.tokens} == {Verdict.PLAIN}


@given(MODELS, RULES, DRAFTS, BUDGETS)
def test_statistics_add_up(model: TableModel, rule: FlyRule, drafts: list[list[bool]], budget: int) -> None:
    played = play(model, rule, drafts, budget)
    statistics, verdicts = played.spec.statistics, [decided.verdict for decided in played.tokens]
    assert statistics.emitted == len(verdicts)
    assert statistics.rounds == len(played.rounds) and statistics.drafted == sum(played.drafted)
    assert statistics.rescued == verdicts.count(Verdict.RESCUED)
    assert statistics.accepted == statistics.rescued + verdicts.count(Verdict.EXACT) <= statistics.drafted
    rejected = sum(getattr(statistics, f"rejected_by_{reason.value}") for reason in RejectionReason)
    assert rejected <= statistics.rounds
    with_draft = [len(r) for r, drafted in zip(played.rounds, played.drafted, strict=True) if drafted]
    assert statistics.draft_rounds == len(with_draft)
    assert statistics.tau * len(with_draft) == pytest.approx(sum(with_draft))


def test_a_window_decided_a_round_later_counts_in_the_round_that_emits_it() -> None:
    spec = Speculation(PROMPT, CARRY, ResponseLimits(100))
    matches = [Position(token, token, 1.0) for token in (10, 11, 12, 13, 14)]
    first = spec.apply(Evidence((*matches[:3], Position(7, 8, 1.0), *matches[3:]), 20, 0.0))
    assert [decided.id for decided in first.decided] == [10, 11, 12]
    assert spec.sequence.ids == [*PROMPT, 10, 11, 12, 7, 13, 14, 20] and spec.decided_length == 5
    second = spec.apply(Evidence(tuple(matches[:4]), 30, 0.0))
    assert [decided.id for decided in second.decided] == [7, 13, 14, 20, 10, 11, 12, 13, 30]
    found = [decided.verdict for decided in second.decided[:4]]
    assert found == [Verdict.RESCUED, Verdict.EXACT, Verdict.EXACT, Verdict.BONUS]
    assert (spec.statistics.emitted, spec.statistics.tau) == (12, 6.0)


def test_without_a_further_draft_the_response_continues_from_the_mismatch() -> None:
    spec = Speculation(PROMPT, CARRY, ResponseLimits(100))
    matches = [Position(token, token, 1.0) for token in (10, 11)]
    spec.apply(Evidence((Position(7, 8, 1.0), *matches), 20, 0.0))
    decision = spec.apply(Evidence((), 30, 0.0))
    assert [(d.id, d.verdict) for d in decision.decided] == [(8, Verdict.CORRECTED)]
    assert spec.sequence.ids == [*PROMPT, 8] and spec.decided_length == 3
    assert spec.statistics.tau == 0.0 and spec.statistics.draft_rounds == 1


def test_a_stop_string_ends_the_response_before_a_later_ending_token() -> None:
    limits = ResponseLimits(50, frozenset({END}))
    spec = Speculation(PROMPT, EXACT, limits, lambda ids: 1 if 7 in ids else None)
    decision = spec.apply(Evidence((Position(7, 7, 0.0), Position(END, END, 0.0)), 9, 0.0))
    assert [decided.id for decided in decision.decided] == [7]
    assert spec.finish_reason is FinishReason.STOP_STRING


def test_stop_strings_are_searched_in_decided_tokens_only() -> None:
    searched: list[int] = []

    def find_stop(ids: Sequence[int]) -> int | None:
        searched.extend(ids)
        return ids.index(7) + 1 if 7 in ids else None

    spec = Speculation(PROMPT, CARRY, ResponseLimits(100), find_stop)
    matches = [Position(token, token, 1.0) for token in (10, 11, 12, 13)]
    spec.apply(Evidence((Position(7, 8, 1.0), *matches[:2]), 20, 0.0))
    assert searched == [] and spec.finish_reason is None
    spec.apply(Evidence(tuple(matches), 30, 0.0))
    assert spec.finish_reason is FinishReason.STOP_STRING and spec.statistics.emitted == 1
    assert spec.sequence.ids == [*PROMPT, 7]
