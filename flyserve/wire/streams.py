"""Messages of the internal streams; those of every step are converted by hand, because they are hot."""

from collections.abc import Callable
from typing import Any, TypeVar

from flyserve.core.endpoints import Endpoint, Snapshot
from flyserve.core.errors import InvalidRequest
from flyserve.core.messages import (
    Close,
    Draft,
    DraftStep,
    Extend,
    Load,
    ModelInfo,
    Open,
    Opened,
    Queued,
    Role,
    Stale,
    Verification,
    VerifyStep,
)
from flyserve.v1 import common_pb2, drafter_pb2, registry_pb2, target_pb2
from flyserve.wire.codec import decode, encode
from flyserve.wire.enums import members
from flyserve.wire.step_parts import (
    counts_from_wire,
    distributions_from_wire,
    listed,
    load_from_wire,
    logprobs_from_wire,
    logprobs_to_wire,
    stale_from_wire,
    times_from_wire,
    update_from_wire,
    write_distributions,
    write_numbers,
    write_stale,
    write_update,
)

Step = TypeVar("Step", VerifyStep, DraftStep)

_ROLES = members(Role, common_pb2.Role.DESCRIPTOR)


def info_to_wire(info: ModelInfo, load: Load) -> common_pb2.InfoResponse:
    wire = common_pb2.InfoResponse(model=encode(info, common_pb2.ModelInfo()))
    write_numbers(load, wire.load)
    return wire


def info_from_wire(wire: common_pb2.InfoResponse) -> tuple[ModelInfo, Load]:
    return decode(ModelInfo, wire.model), load_from_wire(wire.load)


def snapshot_to_wire(snapshot: Snapshot) -> registry_pb2.Snapshot:
    return encode(snapshot, registry_pb2.Snapshot())


def snapshot_from_wire(wire: registry_pb2.Snapshot) -> Snapshot:
    """Leave out endpoints whose role this version does not have."""
    known = tuple(decode(Endpoint, endpoint) for endpoint in wire.endpoints if endpoint.role in _ROLES)
    return Snapshot(wire.generation, known)


def write_opening(opening: Open, wire: target_pb2.VerifyRequest | drafter_pb2.DraftRequest) -> None:
    """Add the open of a stream to its first message."""
    encode(opening, wire.open)
    wire.open.SetInParent()


def opening_from_wire(wire: Any) -> Open:
    """Return the open of a stream from its first message; raise InvalidRequest if it has none."""
    if not wire.HasField("open"):
        raise InvalidRequest.of("open", "is missing: the first message of a stream must have it")
    return decode(Open, wire.open)


def verify_request_to_wire(message: Open | VerifyStep | Extend | Close) -> target_pb2.VerifyRequest:
    wire = target_pb2.VerifyRequest()
    match message:
        case VerifyStep():
            step = wire.step
            write_update(message.update, step.update)
            step.num_drafts = message.num_drafts
            write_distributions(message.distributions, step.distributions)
        case Extend():
            extend = wire.extend
            write_update(message.update, extend.update)
            extend.max_tokens = message.max_tokens
            extend.without_entropies = message.without_entropies
        case _:
            _write_other(message, wire)
    return wire


def verify_request_from_wire(wire: target_pb2.VerifyRequest) -> Open | VerifyStep | Extend | Close:
    """Raise InvalidRequest if the message has no kind or an unknown enumeration value."""
    if wire.HasField("extend"):
        extend = wire.extend
        return Extend(update_from_wire(extend.update), extend.max_tokens, extend.without_entropies)
    return _request_from_wire(wire, _verify_step_from_wire)


def _verify_step_from_wire(wire: target_pb2.VerifyStep) -> VerifyStep:
    return VerifyStep(
        update=update_from_wire(wire.update),
        num_drafts=wire.num_drafts,
        distributions=distributions_from_wire(wire.distributions),
    )


def verify_response_to_wire(message: Verification | Stale | Queued | Opened) -> target_pb2.VerifyResponse:
    wire = target_pb2.VerifyResponse()
    if isinstance(message, Verification):
        _write_verification(message, wire.verification)
    else:
        _write_notice(message, wire)
    return wire


def _write_verification(message: Verification, wire: target_pb2.Verification) -> None:
    wire.step_id = message.step_id
    wire.choices.extend(message.choices)
    wire.entropies.extend(message.entropies)
    wire.excluded_drafts.extend(sorted(message.excluded_drafts))
    write_numbers(message.times, wire.times)
    write_numbers(message.load, wire.load)
    wire.logprobs.extend(map(logprobs_to_wire, message.logprobs))
    wire.gaps.extend(message.gaps)


def verify_response_from_wire(wire: target_pb2.VerifyResponse) -> Verification | Stale | Queued | Opened:
    if (notice := _notice_from_wire(wire)) is not None:
        return notice
    verification = wire.verification
    return Verification(
        step_id=verification.step_id,
        choices=listed(verification.choices),
        entropies=listed(verification.entropies),
        excluded_drafts=frozenset(verification.excluded_drafts[:]),
        logprobs=tuple(map(logprobs_from_wire, verification.logprobs)),
        gaps=listed(verification.gaps),
        times=times_from_wire(verification.times),
        load=load_from_wire(verification.load),
    )


def draft_request_to_wire(message: Open | DraftStep | Close) -> drafter_pb2.DraftRequest:
    wire = drafter_pb2.DraftRequest()
    if isinstance(message, DraftStep):
        step = wire.step
        write_update(message.update, step.update)
        step.max_tokens = message.max_tokens
        step.end_at_stop = message.end_at_stop
        step.snippet_tokens = message.snippet_tokens
    else:
        _write_other(message, wire)
    return wire


def draft_request_from_wire(wire: drafter_pb2.DraftRequest) -> Open | DraftStep | Close:
    """Raise InvalidRequest if the message has no kind or an unknown enumeration value."""
    return _request_from_wire(wire, _draft_step_from_wire)


def _draft_step_from_wire(wire: drafter_pb2.DraftStep) -> DraftStep:
    return DraftStep(
        update=update_from_wire(wire.update),
        max_tokens=wire.max_tokens,
        end_at_stop=wire.end_at_stop,
        snippet_tokens=wire.snippet_tokens,
    )


def draft_response_to_wire(message: Draft | Stale | Queued | Opened) -> drafter_pb2.DraftResponse:
    wire = drafter_pb2.DraftResponse()
    if isinstance(message, Draft):
        _write_draft(message, wire.draft)
    else:
        _write_notice(message, wire)
    return wire


def _write_draft(message: Draft, wire: drafter_pb2.Draft) -> None:
    wire.step_id = message.step_id
    wire.tokens.extend(message.tokens)
    wire.forwards = message.forwards
    wire.sub_drafter_tokens = message.sub_drafter_tokens
    write_numbers(message.times, wire.times)
    write_numbers(message.load, wire.load)
    write_distributions(message.distributions, wire.distributions)
    write_numbers(message.proposals, wire.proposals)
    wire.drafted_ahead = message.drafted_ahead
    wire.dropped_ahead = message.dropped_ahead
    for snippet in message.snippets:
        wire.snippets.add(tokens=snippet)


def draft_response_from_wire(wire: drafter_pb2.DraftResponse) -> Draft | Stale | Queued | Opened:
    if (notice := _notice_from_wire(wire)) is not None:
        return notice
    draft = wire.draft
    return Draft(
        step_id=draft.step_id,
        tokens=listed(draft.tokens),
        forwards=draft.forwards,
        sub_drafter_tokens=draft.sub_drafter_tokens,
        distributions=distributions_from_wire(draft.distributions),
        proposals=counts_from_wire(draft.proposals),
        drafted_ahead=draft.drafted_ahead,
        dropped_ahead=draft.dropped_ahead,
        snippets=tuple([listed(snippet.tokens) for snippet in draft.snippets]),
        times=times_from_wire(draft.times),
        load=load_from_wire(draft.load),
    )


def _write_notice(
    message: Stale | Queued | Opened, wire: target_pb2.VerifyResponse | drafter_pb2.DraftResponse
) -> None:
    """Write a message that is no result of a step."""
    match message:
        case Stale():
            write_stale(message, wire.stale)
        case Queued():
            wire.queued.SetInParent()
        case Opened():
            wire.opened.SetInParent()


def _notice_from_wire(
    wire: target_pb2.VerifyResponse | drafter_pb2.DraftResponse,
) -> Stale | Queued | Opened | None:
    """Return a message that is no result of a step; None if it is one."""
    match wire.WhichOneof("kind"):
        case "stale":
            return stale_from_wire(wire.stale)
        case "queued":
            return Queued()
        case "opened":
            return Opened()
    return None


def _write_other(message: Open | Close, wire: target_pb2.VerifyRequest | drafter_pb2.DraftRequest) -> None:
    """Write a message that has no step."""
    if isinstance(message, Open):
        write_opening(message, wire)
    else:
        wire.close.SetInParent()
        if message.update is not None:
            write_update(message.update, wire.close.update)


def _request_from_wire(wire: Any, step_from_wire: Callable[[Any], Step]) -> Open | Step | Close:
    match wire.WhichOneof("kind"):
        case "step":
            return step_from_wire(wire.step)
        case "close":
            return Close(update_from_wire(wire.close.update) if wire.close.HasField("update") else None)
        case None if wire.HasField("open"):
            return decode(Open, wire.open)
        case _:
            raise InvalidRequest.of("kind", "is missing: one of step, extend, close")
