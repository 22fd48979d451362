"""Parts of the messages of every step, converted by hand because they are hot."""

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from flyserve.core.messages import Load, ProposalCounts, Stale, StepTimes
from flyserve.core.sequence import SequenceUpdate, StaleReason
from flyserve.core.types import PositionLogprobs, SparseDistribution
from flyserve.v1 import common_pb2, target_pb2
from flyserve.wire.enums import members, numbers

_STALE_REASONS = members(StaleReason, common_pb2.StaleReason.DESCRIPTOR)
_STALE_NUMBERS = numbers(StaleReason, common_pb2.StaleReason.DESCRIPTOR)
_TIMES, _LOAD, _COUNTS = (attrgetter(*kind._fields) for kind in (StepTimes, Load, ProposalCounts))
"""All fields of a message of numbers at once, which is faster than one by one."""


def write_update(update: SequenceUpdate, wire: common_pb2.SequenceUpdate) -> None:
    """Fill a part of a message in its place: a message made apart would be copied into it."""
    wire.step_id = update.step_id
    wire.keep = update.keep
    wire.tokens.extend(update.tokens)
    wire.decided = update.decided
    wire.prefix_hash = update.prefix_hash


def update_from_wire(wire: common_pb2.SequenceUpdate) -> SequenceUpdate:
    return SequenceUpdate(wire.step_id, wire.keep, listed(wire.tokens), wire.decided, wire.prefix_hash)


def listed(wire: Any) -> tuple[Any, ...]:
    """Return the values of a repeated field; a slice is copied in native code, an iterator is not."""
    return tuple(wire[:])


def write_stale(stale: Stale, wire: common_pb2.Stale) -> None:
    wire.step_id = stale.step_id
    wire.reason = _STALE_NUMBERS[stale.reason]  # type: ignore[assignment]


def stale_from_wire(wire: common_pb2.Stale) -> Stale:
    return Stale(wire.step_id, _STALE_REASONS.get(wire.reason, StaleReason.BEYOND_STATE))


def write_distributions(distributions: Iterable[SparseDistribution], wire: Any) -> None:
    for each in distributions:
        wire.add(ids=each.ids, probabilities=each.probabilities)


def distributions_from_wire(wire: Any) -> tuple[SparseDistribution, ...]:
    return tuple([SparseDistribution(listed(each.ids), listed(each.probabilities)) for each in wire])


def write_numbers(numbers: Any, wire: Any) -> None:
    """Fill a message from a named tuple of numbers with the same fields; those that are 0 stay absent."""
    for name, number in zip(numbers._fields, numbers, strict=True):
        if number:
            setattr(wire, name, number)


def times_from_wire(wire: common_pb2.StepTimes) -> StepTimes:
    return StepTimes(*_TIMES(wire))


def load_from_wire(wire: common_pb2.Load) -> Load:
    return Load(*_LOAD(wire))


def counts_from_wire(wire: Any) -> ProposalCounts:
    return ProposalCounts(*_COUNTS(wire))


def logprobs_to_wire(logprobs: PositionLogprobs) -> target_pb2.PositionLogprobs:
    return target_pb2.PositionLogprobs(
        draft=logprobs.draft,
        choice=logprobs.choice,
        top_ids=[token for token, _ in logprobs.top],
        top_logprobs=[logprob for _, logprob in logprobs.top],
    )


def logprobs_from_wire(wire: target_pb2.PositionLogprobs) -> PositionLogprobs:
    top = tuple(zip(wire.top_ids, wire.top_logprobs, strict=True))
    return PositionLogprobs(wire.draft if wire.HasField("draft") else None, wire.choice, top)
