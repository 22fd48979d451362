"""The rules that a calibration replays: those that can be served, and gates that it only tries. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Any

from flyserve.core.evidence import RoundEvidence
from flyserve.core.presets import EXACT, PRESETS, tuned
from flyserve.core.request import RuleOverrides
from flyserve.core.types import EntropyEstimator, Evidence, FlyRule, Position, TailPolicy

_FIELDS = tuple(each.name for each in fields(RuleOverrides))


@dataclass(frozen=True, slots=True)
class Gates:
    """Conditions of a rescue beside those of `FlyRule`; None is no condition.

    Attributes:
        max_rank: Place of the draft token among the target's most likely tokens: 2 is the second.
        max_rescues: Mismatches that one round may accept.
        budget: Nats that the rescues of a response may spend: each spends its gap. Without enough left a
            mismatch is rejected, so an empty account decodes exactly.
    """

    max_rank: int | None = None
    max_rescues: int | None = None
    budget: float | None = None

    def closed(self, evidence: Evidence, recorded: RoundEvidence, spent: float) -> Evidence:
        """Return the evidence in which each mismatch that a gate rejects is strict.

        `spent` are the nats of the rescues before the round. A mismatch counts as if all before it in its
        round were accepted: the round ends at the first that is not.
        """
        positions = evidence.positions
        costs = [0.0 if each.is_match else each.logprob_gap for each in positions]
        numbers = accumulate(int(not each.is_match) for each in positions)
        totals = [*accumulate(costs, initial=spent)][1:]
        allowed = (
            each.is_match or self._allows(number, total, recorded, index)
            for index, (each, number, total) in enumerate(zip(positions, numbers, totals, strict=True))
        )
        strict = (each._replace(is_strict=not ok) for each, ok in zip(positions, allowed, strict=True))
        return replace(evidence, positions=tuple(strict))

    def _allows(self, number: int, spent: float, recorded: RoundEvidence, index: int) -> bool:
        return (
            (self.max_rank is None or recorded.rank(index) <= self.max_rank)
            and (self.max_rescues is None or number <= self.max_rescues)
            and (self.budget is None or spent <= self.budget)
        )


NO_GATES = Gates()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A rule to replay.

    Attributes:
        name: Its name in tables.
        rule: What a deployment can serve.
        gates: What only a replay can.
    """

    name: str
    rule: FlyRule
    gates: Gates = NO_GATES

    @property
    def is_served(self) -> bool:
        """True if a deployment can serve it."""
        return self.gates == NO_GATES

    def evidence(self, recorded: RoundEvidence, draft_length: int, spent: float) -> Evidence:
        """Return what it decides a recorded round by."""
        found = recorded.for_rule(self.rule.entropy, draft_length)
        return found if self.is_served else self.gates.closed(found, recorded, spent)

    def preset(self) -> dict[str, Any]:
        """Return the rule as changes of a preset, in plain values."""
        for base, rule in (("flyserve", PRESETS["flyserve"]), *PRESETS.items()):
            changes = {name: getattr(self.rule, name) for name in _FIELDS}
            changes = {name: value for name, value in changes.items() if value != getattr(rule, name)}
            if None not in changes.values() and tuned(rule, changes) == self.rule:
                return {"preset": base, **{name: _plain(value) for name, value in changes.items()}}
        raise ValueError(f"the rule {self.name} follows from no preset")


def gap_of(position: Position) -> float:
    """Return the nats that a rescue of this position spends."""
    return 0.0 if position.is_match else position.logprob_gap


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, TailPolicy | EntropyEstimator) else value


def listed(names: Iterable[str]) -> str:
    """Return the names of rules in quotes: they have commas."""
    return ", ".join(map(repr, names))


EXACT_CANDIDATE = Candidate("exact", EXACT)
"""The target's own tokens: the baseline of every comparison."""


def candidates() -> Sequence[Candidate]:
    """Return all rules of a calibration, `exact` first, then the presets; names are distinct."""
    return (EXACT_CANDIDATE, *_presets(), *_entropy_gates(), *_gap_gates(), *_shapes(), *_replayed_gates())


def _presets() -> Iterator[Candidate]:
    for name, rule in PRESETS.items():
        yield Candidate(name, rule)


_ENTROPY = replace(
    PRESETS["flyserve"], window=6, min_following=6, tail=TailPolicy.CARRY, max_logprob_gap=None
)
"""The rule of `flyserve` before it had a limit on the gap: the entropy gate alone, and a long window."""
_OPEN = replace(_ENTROPY, threshold=0.0)


def _with_window(rule: FlyRule, window: int) -> FlyRule:
    """Return the rule with another window; one that is full before it could be carried is not carried."""
    tail = rule.tail if window > rule.carry_after else TailPolicy.REJECT
    return replace(rule, window=window, min_following=window, tail=tail)


def _entropy_gates() -> Iterator[Candidate]:
    for threshold in (0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 1.0):
        yield Candidate(f"entropy {threshold:g}", replace(_ENTROPY, threshold=threshold))
    normalized = replace(_ENTROPY, entropy=EntropyEstimator.NORMALIZED)
    for threshold in (0.01, 0.03, 0.06, 0.1, 0.15, 0.2):
        yield Candidate(f"normalized entropy {threshold:g}", replace(normalized, threshold=threshold))


def _gap_gates() -> Iterator[Candidate]:
    for gap in (0.1, 0.25, 0.35, 0.45, 0.5, 0.55, 0.6, 0.7, 1.0, 2.0):
        limited = replace(_OPEN, max_logprob_gap=gap)
        yield Candidate(f"gap {gap:g}", limited)
        yield Candidate(f"entropy 0.3, gap {gap:g}", replace(_ENTROPY, max_logprob_gap=gap))
        for window in (1, 2, 3, 4):
            yield Candidate(f"gap {gap:g}, window {window}", _with_window(limited, window))


def _shapes() -> Iterator[Candidate]:
    for window in (2, 3, 4, 8, 10):
        yield Candidate(f"window {window}", _with_window(_ENTROPY, window))
    yield Candidate("tail reject", replace(_ENTROPY, tail=TailPolicy.REJECT))
    for length in (8, 32, 64):
        yield Candidate(f"strict prefix {length}", replace(_ENTROPY, strict_prefix_tokens=length))
    yield Candidate("no gate", _OPEN)


def _replayed_gates() -> Iterator[Candidate]:
    yield Candidate("top 2", _OPEN, Gates(max_rank=2))
    yield Candidate("entropy 0.3, top 2", _ENTROPY, Gates(max_rank=2))
    for most in (1, 2):
        yield Candidate(f"entropy 0.3, {most} a round", _ENTROPY, Gates(max_rescues=most))
    for budget in (0.5, 1.0, 2.0, 4.0, 8.0):
        yield Candidate(f"entropy 0.3, budget {budget:g}", _ENTROPY, Gates(budget=budget))
        yield Candidate(f"budget {budget:g}", _OPEN, Gates(budget=budget))
