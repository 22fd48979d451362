"""The link between router and drafter, and between drafter and sub-drafter."""

from fly.errors import InvalidRequest
from fly.messages import Close, Draft, DraftStep, Open, ProposalCounts, Stale
from protos.flyserve.v1 import drafter_pb2
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


def draft_request_to_wire(message: Open | DraftStep | Close) -> drafter_pb2.DraftRequest:
    match message:
        case Open():
            opening = drafter_pb2.DraftOpen(
                open=open_to_wire(message), without_sub_drafter=message.without_sub_drafter
            )
            return drafter_pb2.DraftRequest(open=opening)
        case DraftStep(update, max_tokens, end_at_stop, snippet_tokens):
            step = drafter_pb2.DraftStep(
                update=update_to_wire(update),
                max_tokens=max_tokens,
                end_at_stop=end_at_stop,
                snippet_tokens=snippet_tokens,
            )
            return drafter_pb2.DraftRequest(step=step)
        case Close():
            return drafter_pb2.DraftRequest(close=close_to_wire(message))


def draft_request_from_wire(wire: drafter_pb2.DraftRequest) -> Open | DraftStep | Close:
    """Raises InvalidRequest where the message has no kind."""
    match wire.WhichOneof("kind"):
        case "open":
            return open_from_wire(wire.open.open, without_sub_drafter=wire.open.without_sub_drafter)
        case "step":
            step = wire.step
            update = update_from_wire(step.update)
            return DraftStep(update, step.max_tokens, step.end_at_stop, step.snippet_tokens)
        case "close":
            return close_from_wire(wire.close)
        case _:
            raise InvalidRequest.of("kind", "is missing: one of open, step, close")


def draft_response_to_wire(message: Draft | Stale) -> drafter_pb2.DraftResponse:
    if isinstance(message, Stale):
        return drafter_pb2.DraftResponse(stale=stale_to_wire(message))
    proposals = message.proposals
    draft = drafter_pb2.Draft(
        step_id=message.step_id,
        tokens=message.tokens,
        forwards=message.forwards,
        sub_drafter_tokens=message.sub_drafter_tokens,
        match_length=message.match_length,
        confidence=message.confidence,
        times=times_to_wire(message.times),
        load=load_to_wire(message.load),
        distributions=[distribution_to_wire(distribution) for distribution in message.distributions],
        proposals=drafter_pb2.ProposalCounts(
            requested=proposals.requested,
            late=proposals.late,
            invalid=proposals.invalid,
            low_confidence=proposals.low_confidence,
        ),
        drafted_ahead=message.drafted_ahead,
        dropped_ahead=message.dropped_ahead,
        snippets=[drafter_pb2.Snippet(tokens=snippet) for snippet in message.snippets],
    )
    return drafter_pb2.DraftResponse(draft=draft)


def draft_response_from_wire(wire: drafter_pb2.DraftResponse) -> Draft | Stale:
    if wire.HasField("stale"):
        return stale_from_wire(wire.stale)
    draft = wire.draft
    return Draft(
        step_id=draft.step_id,
        tokens=tuple(draft.tokens),
        forwards=draft.forwards,
        sub_drafter_tokens=draft.sub_drafter_tokens,
        match_length=draft.match_length,
        confidence=draft.confidence,
        distributions=tuple(distribution_from_wire(distribution) for distribution in draft.distributions),
        proposals=ProposalCounts(
            draft.proposals.requested,
            draft.proposals.late,
            draft.proposals.invalid,
            draft.proposals.low_confidence,
        ),
        drafted_ahead=draft.drafted_ahead,
        dropped_ahead=draft.dropped_ahead,
        snippets=tuple(tuple(snippet.tokens) for snippet in draft.snippets),
        times=times_from_wire(draft.times),
        load=load_from_wire(draft.load),
    )
