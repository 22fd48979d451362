"""The study of likely outcomes: its ranking, its closed form, its report, and recorded rounds."""

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.harness.command import Context, Parts
from benchmarks.harness.machine import this_machine
from benchmarks.harness.system import DEMO_MODELS
from benchmarks.scenarios import outcomes
from benchmarks.scenarios.outcomes.ceiling import AHEAD, NOTHING, Costs, Totals, Way, round_s, speed, totals
from benchmarks.scenarios.outcomes.plan import DEMO, Plan, Setting
from benchmarks.scenarios.outcomes.ranking import (
    Answer,
    Response,
    Start,
    rank,
    ranked,
)
from benchmarks.scenarios.outcomes.record import load_pair
from benchmarks.scenarios.outcomes.report import make_report
from benchmarks.scenarios.peers.in_process import InProcess
from fly.types import Mode
from services.drafter.outcomes import Outcome, OutcomeRates, Round, Row

SURE, UNSURE = Row((1, 2, 3), (0.0, 9.0, 9.5)), Row((1, 2, 3), (0.0, 0.05, 2.5))
PLAN = Plan(draft_lengths=(4,), branches=(1, 2))
COSTS = Costs("test", {1: 1.0, 2: 1.1}, {4: 6.0})
KEPT = Start(0, 0, is_full=True, is_ahead=True)
CUT = Start(1, 1, is_full=False, is_ahead=False)
LOST = Start(None, None, is_full=False, is_ahead=False)


def made(outcome: Outcome | None, num_open: int = 0) -> Round:
    """Return a round with four drafts, of which only the second is uncertain."""
    rows = (SURE, UNSURE, SURE, SURE, SURE)
    return Round(4, rows, num_open, UNSURE if num_open else None, outcome)


def learnt(rounds: Sequence[Round]) -> OutcomeRates:
    """Return the rates of recorded rounds."""
    rates = OutcomeRates()
    for each in rounds:
        rates.record(each)
    return rates


def test_the_most_likely_outcome_is_the_one_that_was_seen_most_often() -> None:
    seen = [made(Outcome(1, 2))] * 6 + [made(Outcome(4, 1))] * 3 + [made(Outcome(1, 3))]
    found = ranked(made(None), learnt(seen))
    assert found[:3] == [Outcome(1, 2), Outcome(4, 1), Outcome(1, 3)]
    assert Outcome(1, 1) not in found, "a draft token is not corrected by itself"


def test_an_open_window_may_fail_before_the_draft() -> None:
    seen = [made(Outcome(-3, 2), 3)] * 6 + [made(Outcome(4, 1), 3)] * 2
    rates = learnt(seen)
    assert ranked(made(None, 5), rates)[:2] == [Outcome(-5, 2), Outcome(4, 1)]
    assert all(outcome.kept >= 0 for outcome in ranked(made(None), rates))


def test_a_response_is_ranked_by_others_and_its_last_round_has_no_next_start() -> None:
    usual = Response(0, 9, (made(Outcome(1, 2)), made(Outcome(4, 1)), made(None)))
    odd = Response(1, 9, (made(Outcome(1, 3)), made(Outcome(4, 7))))
    answers = rank([usual, odd, usual, odd])
    assert [answer.rounds for answer in answers] == [3, 2, 3, 2]
    first, second = answers[0].starts
    assert (first.rank, first.is_full, first.is_ahead) == (1, False, False)
    assert (second.rank, second.is_full, second.is_ahead) == (0, True, True)
    assert first.place is not None and first.place > 0, "the other half saw another token there"
    unknown = answers[1].starts[1]
    assert (unknown.place, unknown.rank, unknown.is_full, unknown.is_ahead) == (None, None, True, False)


def test_the_closed_form_saves_the_forwards_that_fit_into_a_verification() -> None:
    found = Totals(tokens=30, rounds=10, full=2, partial=3)
    assert round_s(COSTS, 4, NOTHING, found._replace(full=0, partial=0), 0.0) == 6 + 4
    assert round_s(COSTS, 4, AHEAD, found, 0.0) == pytest.approx(6 + 4 - 0.5 * 4), "six forwards fit"
    short = replace(COSTS, verify_s={4: 4.0})
    assert round_s(short, 4, AHEAD, found, 0.0) == pytest.approx(4 + 4 - 0.2 * 3 - 0.3 * 4)
    assert round_s(short, 4, Way(2), found, 0.0) == pytest.approx(4 + 4 - 0.2 * 2 - 0.3 * 3)
    assert round_s(short, 4, Way(2), found, 1.0) == pytest.approx(5 + 4 - 0.2 * 3 - 0.3 * 4)
    assert speed(COSTS, 4, AHEAD, [found, found], 0.0) == pytest.approx(3 / 8)


def test_starts_are_prepared_by_their_place() -> None:
    answer = Answer(20, 4, (KEPT, CUT, LOST))
    expected = {NOTHING: (0, 0), AHEAD: (1, 0), Way(1): (1, 0), Way(2): (1, 1)}
    assert {way: totals(answer, way)[2:] for way in expected} == expected
    missed = Answer(20, 4, (replace(KEPT, place=3),))
    assert totals(missed, AHEAD).full == 1 and totals(missed, Way(2)).full == 0


def test_the_report_compares_the_best_uses_of_the_time(tmp_path: Path) -> None:
    found = {setting: [Answer(20, 4, (KEPT, CUT, LOST))] * 3 for setting in PLAN.settings(DEMO)}
    report = make_report(PLAN, this_machine(), found, {DEMO: [COSTS]})
    page = report.write(tmp_path, tmp_path).read_text("utf-8")
    assert "| exact | 0 | 4 | 9 | 5.00 | 33% | 33% | 33% | 67% | 50% | 0% |" in page
    # One round in four is prepared ahead, two with two outcomes: rounds of 9 and 8 s.
    assert "| fly | 1 | 0 | 0 (K = 4) | 1 (K = 4) | 1 (K = 4, F = 2) | 1.12x | 1.12 to 1.12 |" in page
    assert "of drafting ahead, and reaches 1.10x at 8 of 8 points" in page
    goals = json.loads((tmp_path / "outcomes.json").read_text("utf-8"))["goals"]
    assert [goal["limit"] for goal in goals] == [1.1] * 2
    assert goals[0]["measured"]["value"] == pytest.approx(9 / 8)


def test_the_report_says_that_nothing_is_gained(tmp_path: Path) -> None:
    found = {setting: [Answer(20, 4, (KEPT, LOST, LOST))] * 3 for setting in PLAN.settings(DEMO)}
    page = make_report(PLAN, this_machine(), found, {DEMO: [COSTS]}).page
    assert "not worth building" in page


@pytest.mark.slow
def test_recorded_rounds_decode_as_the_pair_does_and_know_the_noise() -> None:
    pair = load_pair(DEMO, Plan(prompts=2, max_new_tokens=48))
    alone = InProcess(DEMO_MODELS / "target", None, "bfloat16")
    greedy = pair.record(Setting(DEMO, Mode.EXACT, 0.0, 5), 0)
    answer = alone.decode("plain", pair.prompts[0], 48)
    assert greedy.tokens == len(answer.tokens)
    position = 0
    for each in greedy.rounds[:-1]:
        assert each.outcome is not None
        kept = [row.ids[0] for row in each.rows[: each.outcome.kept]]
        emitted = (*kept, each.outcome.token)
        assert answer.tokens[position : position + len(emitted)] == emitted
        position += len(emitted)
    for mode in (Mode.EXACT, Mode.FLY):
        sampled = pair.record(Setting(DEMO, mode, 1.0, 5), 1)
        assert sampled == pair.record(Setting(DEMO, mode, 1.0, 5), 1)
        gaps = [gap for each in sampled.rounds for row in each.rows for gap in row.gaps]
        assert min(gaps) >= -1e-4, "the drafter's draw has the best score"
        assert sum(each.outcome is not None for each in sampled.rounds) == len(sampled.rounds) - 1


@pytest.mark.slow
def test_the_quick_study_of_the_demo_pair_writes_its_page(tmp_path: Path) -> None:
    context = Context(this_machine(), Parts(tmp_path, "", False), Console(file=io.StringIO()), only=(DEMO,))
    report = outcomes.run(Plan().quick(), context)
    page = report.write(tmp_path, tmp_path).read_text("utf-8")
    assert "the demo pair, measured" in page and "simulated" in page and "aligned" not in page
    rows = json.loads((tmp_path / "outcomes.json").read_text("utf-8"))["counts"][DEMO]
    assert len(rows) == 8 and all(row["prepared_1"] <= row["prepared_8"] for row in rows)
    assert any(row["prepared_8"] > row["ahead"] for row in rows)
    assert list(tmp_path.glob("outcomes-demo.svg"))
