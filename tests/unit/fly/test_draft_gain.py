"""Trials of drafting and of plain decoding under load, by sequences in step."""

import math
from dataclasses import dataclass, field

import pytest

from fly.comparison import Turn
from fly.draft_length.draft_gain import DraftGain

SEQUENCES = 4
TOKENS = 3.0
"""Tokens of a round with a draft."""


@dataclass
class Traffic:
    """Sequences in step: a round takes `seconds[False]` without a draft, `seconds[True]` with one."""

    gain: DraftGain
    seconds: dict[bool, float]
    wants_draft: bool = True
    rounds_s: tuple[float, float] = (1.0, 1.0)
    choices: list[bool] = field(default_factory=list)

    def run(self, num_rounds: int) -> None:
        for _ in range(num_rounds):
            self.plain_s()
            phase, is_drafting = self.gain.phase, self.gain.choose(self.wants_draft)
            self.choices.append(is_drafting)
            for _ in range(SEQUENCES):
                self.gain.record(phase, is_drafting, SEQUENCES, self.seconds[is_drafting], 1.0, True)

    def plain_s(self) -> float:
        return self.gain.plain_s(self.rounds_s, TOKENS / self.rounds_s[-1])


@pytest.mark.parametrize("wants_draft", [False, True])
@pytest.mark.parametrize(("drafts_s", "plain_s"), [(0.06, 0.01), (0.03, 0.02), (0.03, 0.01)])
def test_a_trial_measures_plain_rounds_by_those_with_drafts(
    wants_draft: bool, drafts_s: float, plain_s: float
) -> None:
    running = Traffic(DraftGain(Turn()), {True: drafts_s, False: plain_s}, wants_draft)
    assert running.plain_s() == 1.0, "the estimate, before a trial"
    running.run(100)
    assert {*running.choices} == {False, True}, "the usual rounds, and a trial"
    assert running.plain_s() == pytest.approx(plain_s / drafts_s, rel=0.02)
    running.rounds_s = (5.0, 0.5)
    assert running.plain_s() == pytest.approx(0.5 * plain_s / drafts_s, rel=0.02)


@pytest.mark.parametrize(("drafts_s", "plain_s"), [(0.03, 0.01), (0.03, 0.03), (0.1, 0.01)])
def test_trials_lose_little(drafts_s: float, plain_s: float) -> None:
    seconds = {True: drafts_s, False: plain_s}
    is_better = TOKENS / drafts_s >= 1 / plain_s
    running = Traffic(DraftGain(Turn()), seconds, is_better)
    running.run(20_000)
    tokens = sum(TOKENS if drafted else 1.0 for drafted in running.choices)
    spent_s = sum(seconds[drafted] for drafted in running.choices)
    best = max(TOKENS / drafts_s, 1 / plain_s)
    assert len({*running.choices}) == 2 and tokens / spent_s > 0.985 * best


def test_all_kinds_of_sequences_take_part_in_a_trial() -> None:
    turn = Turn()
    one, other = Traffic(DraftGain(turn), {True: 0.03, False: 0.01}), DraftGain(turn)
    while turn.trial is None:
        one.run(1)
    assert one.gain.choose(True) is False and other.choose(True) is False
    trial = turn.trial
    for _ in range(100):
        other.record(turn.phase, False, 1000, 0.01, 1.0, True)
    assert turn.trial is trial, "100 of 1000 sequences are no round of all"
    for _ in range(40):
        other.record(turn.phase, False, 2, 0.01, 1.0, True)
    assert turn.trial is not trial, "a trial whose sequences have ended ends, too"


def test_loads_have_results_of_their_own_and_borrow_the_nearest() -> None:
    gain = DraftGain(Turn())
    running = Traffic(gain, {True: 0.03, False: 0.01})
    running.run(100)
    for _ in range(640):
        gain.record(-1, True, 64, 0.3, 1.0, True)
    assert running.plain_s() == pytest.approx(1 / 3, rel=0.02) and math.isfinite(running.plain_s())
