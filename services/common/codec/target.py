"""The link between router and target."""

from fly.errors import InvalidRequest
from fly.messages import Close, Open, Stale, Verification, VerifyStep
from fly.types import EntropyEstimator, Logprobs
from protos.flyserve.v1 import target_pb2
from services.common.codec.shared import (
    close_from_wire,
    close_to_wire,
    distribution_from_wire,
    distribution_to_wire,
    load_from_wire,
    load_to_wire,
    open_from_wire,
    open_to_wire,
    stale_from_wire,
    stale_to_wire,
    times_from_wire,
    times_to_wire,
    update_from_wire,
    update_to_wire,
)

_ENTROPY = {
    EntropyEstimator.TOP_K: target_pb2.ENTROPY_ESTIMATOR_TOP_K,
    EntropyEstimator.NORMALIZED: target_pb2.ENTROPY_ESTIMATOR_NORMALIZED,
}
_ENTROPY_BACK = {wire: domain for domain, wire in _ENTROPY.items()} | {
    target_pb2.ENTROPY_ESTIMATOR_UNSPECIFIED: EntropyEstimator.TOP_K
}


def verify_request_to_wire(message: Open | VerifyStep | Close) -> target_pb2.VerifyRequest:
    match message:
        case Open():
            opening = target_pb2.VerifyOpen(
                open=open_to_wire(message),
                entropy=_ENTROPY[message.entropy],
                num_logprobs=message.num_logprobs,
            )
            return target_pb2.VerifyRequest(open=opening)
        case VerifyStep(update, num_drafts, distributions):
            step = target_pb2.VerifyStep(
                update=update_to_wire(update),
                num_drafts=num_drafts,
                distributions=[distribution_to_wire(distribution) for distribution in distributions],
            )
            return target_pb2.VerifyRequest(step=step)
        case Close():
            return target_pb2.VerifyRequest(close=close_to_wire(message))


def verify_request_from_wire(wire: target_pb2.VerifyRequest) -> Open | VerifyStep | Close:
    """Raises InvalidRequest where the message has no kind or an unknown estimator."""
    match wire.WhichOneof("kind"):
        case "open":
            if (entropy := _ENTROPY_BACK.get(wire.open.entropy)) is None:
                raise InvalidRequest.of("open.entropy", f"is {wire.open.entropy}, not a known estimator")
            num_logprobs = wire.open.num_logprobs if wire.open.HasField("num_logprobs") else None
            return open_from_wire(wire.open.open, entropy=entropy, num_logprobs=num_logprobs)
        case "step":
            step = wire.step
            distributions = tuple(distribution_from_wire(told) for told in step.distributions)
            update = update_from_wire(step.update)
            return VerifyStep(update, step.num_drafts, distributions)
        case "close":
            return close_from_wire(wire.close)
        case _:
            raise InvalidRequest.of("kind", "is missing: one of open, step, close")


def verify_response_to_wire(message: Verification | Stale) -> target_pb2.VerifyResponse:
    if isinstance(message, Stale):
        return target_pb2.VerifyResponse(stale=stale_to_wire(message))
    verification = target_pb2.Verification(
        step_id=message.step_id,
        choices=message.choices,
        entropies=message.entropies,
        excluded_drafts=sorted(message.excluded_drafts),
        times=times_to_wire(message.times),
        load=load_to_wire(message.load),
        logprobs=[_logprobs_to_wire(logprobs) for logprobs in message.logprobs],
    )
    return target_pb2.VerifyResponse(verification=verification)


def verify_response_from_wire(wire: target_pb2.VerifyResponse) -> Verification | Stale:
    if wire.HasField("stale"):
        return stale_from_wire(wire.stale)
    answer = wire.verification
    return Verification(
        step_id=answer.step_id,
        choices=tuple(answer.choices),
        entropies=tuple(answer.entropies),
        excluded_drafts=frozenset(answer.excluded_drafts),
        logprobs=tuple(_logprobs_from_wire(logprobs) for logprobs in answer.logprobs),
        times=times_from_wire(answer.times),
        load=load_from_wire(answer.load),
    )


def _logprobs_to_wire(logprobs: Logprobs) -> target_pb2.PositionLogprobs:
    return target_pb2.PositionLogprobs(
        draft=logprobs.draft,
        choice=logprobs.choice,
        top_ids=[token for token, _ in logprobs.top],
        top_logprobs=[logprob for _, logprob in logprobs.top],
    )


def _logprobs_from_wire(wire: target_pb2.PositionLogprobs) -> Logprobs:
    top = tuple(zip(wire.top_ids, wire.top_logprobs, strict=True))
    return Logprobs(wire.draft if wire.HasField("draft") else None, wire.choice, top)
