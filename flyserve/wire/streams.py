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
    counts_to_wire,
    distribution_to_wire,
    distributions_from_wire,
    load_from_wire,
    load_to_wire,
    logprobs_from_wire,
    logprobs_to_wire,
    stale_from_wire,
    times_from_wire,
    times_to_wire,
    update_from_wire,
    update_to_wire,
)

Step = TypeVar("Step", VerifyStep, DraftStep)

_ROLES = members(Role, common_pb2.Role.DESCRIPTOR)


def info_to_wire(info: ModelInfo, load: Load) -> common_pb2.InfoResponse:
    return common_pb2.InfoResponse(model=encode(info, common_pb2.ModelInfo()), load=load_to_wire(load))


def info_from_wire(wire: common_pb2.InfoResponse) -> tuple[ModelInfo, Load]:
    return decode(ModelInfo, wire.model), load_from_wire(wire.load)


def snapshot_to_wire(snapshot: Snapshot) -> registry_pb2.Snapshot:
    return encode(snapshot, registry_pb2.Snapshot())


def snapshot_from_wire(wire: registry_pb2.Snapshot) -> Snapshot:
    """Leave out endpoints whose role this version does not have."""
    known = tuple(decode(Endpoint, endpoint) for endpoint in wire.endpoints if endpoint.role in _ROLES)
    return Snapshot(wire.generation, known)


def verify_request_to_wire(message: Open | VerifyStep | Extend | Close) -> target_pb2.VerifyRequest:
    match message:
        case Open():
            return target_pb2.VerifyRequest(open=encode(message, common_pb2.Open()))
        case VerifyStep():
            step = target_pb2.VerifyStep(
                update=update_to_wire(message.update),
                num_drafts=message.num_drafts,
                distributions=[distribution_to_wire(each) for each in message.distributions],
            )
            return target_pb2.VerifyRequest(step=step)
        case Extend():
            extend = target_pb2.Extend(
                update=update_to_wire(message.update),
                max_tokens=message.max_tokens,
                without_entropies=message.without_entropies,
            )
            return target_pb2.VerifyRequest(extend=extend)
        case Close():
            return target_pb2.VerifyRequest(close=encode(message, common_pb2.Close()))


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
    match message:
        case Stale():
            return target_pb2.VerifyResponse(stale=encode(message, common_pb2.Stale()))
        case Queued():
            return target_pb2.VerifyResponse(queued=common_pb2.Queued())
        case Opened():
            return target_pb2.VerifyResponse(opened=common_pb2.Opened())
    verification = target_pb2.Verification(
        step_id=message.step_id,
        choices=message.choices,
        entropies=message.entropies,
        excluded_drafts=sorted(message.excluded_drafts),
        times=times_to_wire(message.times),
        load=load_to_wire(message.load),
        logprobs=[logprobs_to_wire(logprobs) for logprobs in message.logprobs],
        gaps=message.gaps,
    )
    return target_pb2.VerifyResponse(verification=verification)


def verify_response_from_wire(wire: target_pb2.VerifyResponse) -> Verification | Stale | Queued | Opened:
    match wire.WhichOneof("kind"):
        case "stale":
            return stale_from_wire(wire.stale)
        case "queued":
            return Queued()
        case "opened":
            return Opened()
    verification = wire.verification
    return Verification(
        step_id=verification.step_id,
        choices=tuple(verification.choices),
        entropies=tuple(verification.entropies),
        excluded_drafts=frozenset(verification.excluded_drafts),
        logprobs=tuple(logprobs_from_wire(logprobs) for logprobs in verification.logprobs),
        gaps=tuple(verification.gaps),
        times=times_from_wire(verification.times),
        load=load_from_wire(verification.load),
    )


def draft_request_to_wire(message: Open | DraftStep | Close) -> drafter_pb2.DraftRequest:
    match message:
        case Open():
            return drafter_pb2.DraftRequest(open=encode(message, common_pb2.Open()))
        case DraftStep():
            step = drafter_pb2.DraftStep(
                update=update_to_wire(message.update),
                max_tokens=message.max_tokens,
                end_at_stop=message.end_at_stop,
                snippet_tokens=message.snippet_tokens,
            )
            return drafter_pb2.DraftRequest(step=step)
        case Close():
            return drafter_pb2.DraftRequest(close=encode(message, common_pb2.Close()))


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


def draft_response_to_wire(message: Draft | Stale | Opened) -> drafter_pb2.DraftResponse:
    match message:
        case Stale():
            return drafter_pb2.DraftResponse(stale=encode(message, common_pb2.Stale()))
        case Opened():
            return drafter_pb2.DraftResponse(opened=common_pb2.Opened())
    draft = drafter_pb2.Draft(
        step_id=message.step_id,
        tokens=message.tokens,
        forwards=message.forwards,
        sub_drafter_tokens=message.sub_drafter_tokens,
        times=times_to_wire(message.times),
        load=load_to_wire(message.load),
        distributions=[distribution_to_wire(each) for each in message.distributions],
        proposals=counts_to_wire(message.proposals),
        drafted_ahead=message.drafted_ahead,
        dropped_ahead=message.dropped_ahead,
        snippets=[drafter_pb2.Snippet(tokens=snippet) for snippet in message.snippets],
    )
    return drafter_pb2.DraftResponse(draft=draft)


def draft_response_from_wire(wire: drafter_pb2.DraftResponse) -> Draft | Stale | Opened:
    match wire.WhichOneof("kind"):
        case "stale":
            return stale_from_wire(wire.stale)
        case "opened":
            return Opened()
    draft = wire.draft
    return Draft(
        step_id=draft.step_id,
        tokens=tuple(draft.tokens),
        forwards=draft.forwards,
        sub_drafter_tokens=draft.sub_drafter_tokens,
        distributions=distributions_from_wire(draft.distributions),
        proposals=counts_from_wire(draft.proposals),
        drafted_ahead=draft.drafted_ahead,
        dropped_ahead=draft.dropped_ahead,
        snippets=tuple(tuple(snippet.tokens) for snippet in draft.snippets),
        times=times_from_wire(draft.times),
        load=load_from_wire(draft.load),
    )


def _request_from_wire(wire: Any, step_from_wire: Callable[[Any], Step]) -> Open | Step | Close:
    match wire.WhichOneof("kind"):
        case "open":
            return decode(Open, wire.open)
        case "step":
            return step_from_wire(wire.step)
        case "close":
            return Close(update_from_wire(wire.close.update) if wire.close.HasField("update") else None)
        case _:
            raise InvalidRequest.of("kind", "is missing: one of open, step, extend, close")
