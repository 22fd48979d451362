"""Parts of the messages of every step, converted by hand because they are hot."""

from dataclasses import fields
from operator import attrgetter
from typing import Any

from flyserve.core.messages import Load, ProposalCounts, Stale, StepTimes
from flyserve.core.sequence import SequenceUpdate, StaleReason
from flyserve.core.types import PositionLogprobs, SparseDistribution
from flyserve.v1 import common_pb2, drafter_pb2, target_pb2
from flyserve.wire.enums import members

_STALE_REASONS = members(StaleReason, common_pb2.StaleReason.DESCRIPTOR)
_TIMES, _LOAD, _COUNTS = (
    attrgetter(*(each.name for each in fields(kind))) for kind in (StepTimes, Load, ProposalCounts)
)
"""All fields of a message of numbers at once, which is faster than one by one."""


def update_to_wire(update: SequenceUpdate) -> common_pb2.SequenceUpdate:
    return common_pb2.SequenceUpdate(
        step_id=update.step_id,
        keep=update.keep,
        tokens=update.tokens,
        decided=update.decided,
        prefix_hash=update.prefix_hash,
    )


def update_from_wire(wire: common_pb2.SequenceUpdate) -> SequenceUpdate:
    return SequenceUpdate(
        step_id=wire.step_id,
        keep=wire.keep,
        tokens=tuple(wire.tokens[:]),  # a slice is copied in native code, an iterator is not
        decided=wire.decided,
        prefix_hash=wire.prefix_hash,
    )


def stale_from_wire(wire: common_pb2.Stale) -> Stale:
    return Stale(wire.step_id, _STALE_REASONS.get(wire.reason, StaleReason.BEYOND_STATE))


def distribution_to_wire(distribution: SparseDistribution) -> common_pb2.SparseDistribution:
    return common_pb2.SparseDistribution(ids=distribution.ids, probabilities=distribution.probabilities)


def distributions_from_wire(wire: Any) -> tuple[SparseDistribution, ...]:
    return tuple(SparseDistribution(tuple(each.ids), tuple(each.probabilities)) for each in wire)


def times_to_wire(times: StepTimes) -> common_pb2.StepTimes:
    return common_pb2.StepTimes(
        queue_ns=times.queue_ns,
        forward_ns=times.forward_ns,
        batch_size=times.batch_size,
        batch_tokens=times.batch_tokens,
        prefill_tokens=times.prefill_tokens,
        reused_tokens=times.reused_tokens,
    )


def times_from_wire(wire: common_pb2.StepTimes) -> StepTimes:
    return StepTimes(*_TIMES(wire))


def load_to_wire(load: Load) -> common_pb2.Load:
    return common_pb2.Load(
        sequences=load.sequences,
        queued=load.queued,
        kv_used=load.kv_used,
        kv_capacity=load.kv_capacity,
        kv_cached=load.kv_cached,
        prefill_tokens=load.prefill_tokens,
        reused_tokens=load.reused_tokens,
        preemptions=load.preemptions,
    )


def load_from_wire(wire: common_pb2.Load) -> Load:
    return Load(*_LOAD(wire))


def counts_to_wire(counts: ProposalCounts) -> drafter_pb2.ProposalCounts:
    return drafter_pb2.ProposalCounts(
        requested=counts.requested,
        late=counts.late,
        invalid=counts.invalid,
    )


def counts_from_wire(wire: drafter_pb2.ProposalCounts) -> ProposalCounts:
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
