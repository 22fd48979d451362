"""The replay of rules on recorded rounds that are made by hand."""

from types import SimpleNamespace
from typing import Any, cast

from flyserve.calibration.candidate import Candidate, Gates
from flyserve.calibration.collect import Collector, hash_of
from flyserve.calibration.recording import RecordedPrompt
from flyserve.calibration.replay import Replay
from flyserve.core.evidence import RoundEvidence
from flyserve.core.types import EntropyEstimator, FlyRule, ResponseLimits, TailPolicy
from tests.unit.flyserve.calibration_rig import EVIDENCE, PAIR

CARRYING = FlyRule(
    threshold=0.0,
    window=2,
    min_following=2,
    tail=TailPolicy.CARRY,
    carry_after=1,
    entropy=EntropyEstimator.NORMALIZED,
)


def evidence(drafts: tuple[int, ...], choices: tuple[int, ...], gaps: tuple[float, ...]) -> RoundEvidence:
    return RoundEvidence(drafts, choices, (0.5,) * len(choices), gaps)


def test_the_gaps_of_a_dropped_draft_spend_nothing_of_a_budget() -> None:
    rounds = {
        (): evidence((10, 11, 12), (10, 21, 12, 13), (0.0, 0.5, 0.0)),
        (10, 11, 12, 13): evidence((14, 15, 16), (24, 25, 26, 17), (1.0, 1.0, 1.0)),  # the window of 11 fails
        (10, 21): evidence((31, 32), (41, 32, 33), (0.5, 0.0)),  # 33 is where 14 was
        (10, 21, 31, 32, 33): evidence((34, 35, 36), (34, 45, 36, 37), (0.0, 0.5, 0.0)),
    }
    recorded = {hash_of(prefix): found for prefix, found in rounds.items()}
    replay = Replay(Candidate("", CARRYING, Gates(budget=1.0)), ResponseLimits(100, frozenset()), 3)
    assert replay.advance(recorded) == (10, 21, 31, 32, 33, 34, 35, 36, 37), (
        "two gaps of 0.5 fit a budget of 1"
    )


class Counting(dict[int, RoundEvidence]):
    num_read = 0

    def get(self, *arguments: Any) -> Any:
        self.num_read += 1
        return super().get(*arguments)


class OneRound:
    """A client whose every response is of the same round."""

    def generate(self, *_: Any, **__: Any) -> Any:
        choice = SimpleNamespace(rounds=[SimpleNamespace(evidence=EVIDENCE)])
        return SimpleNamespace(warnings=(), choices=[choice])


def test_a_round_that_was_missing_needs_no_replay_of_those_before_it() -> None:
    rounds, client, rule = Counting(), cast(Any, OneRound()), Candidate("", CARRYING)
    found = Collector(client, PAIR, 200).complete(RecordedPrompt((1,), rounds), rule)
    assert found is not None and len(rounds) == found.statistics.rounds == 100
    assert rounds.num_read == 2 * len(rounds), "once before it is recorded, and once after"
