"""One choice's life: open, then rounds of propose, verify, decide and emit, then close."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from fly.clock import Clock
from fly.errors import InvalidRequest
from fly.messages import Open
from fly.speculation import Speculation
from fly.types import Decision, ResponseLimits
from router.config import RouterConfig
from router.generation.draft_lengths import DraftLengths
from router.generation.drafter_session import DrafterSide
from router.generation.logprobs import LogprobLedger
from router.generation.observation import trace_response
from router.generation.response import Ending, Piece, ResponseToken
from router.generation.round import Response, play_round
from router.generation.target_session import TargetSide
from router.metrics import RouterMetrics
from router.replicas.discovery import Fleet
from router.requests.deadline import Deadline
from router.requests.request import PreparedRequest
from router.text.chat_template import ChatTemplate
from router.text.output import ResponseText
from router.text.tokenizer import Tokenizer
from services.common.telemetry.tracing import Tracer, current_span

_MANY_RECEIVED = 256
"""Tokens of a resumed response whose detokenizing would hold up other requests."""
_TEXT_CONTEXT = 5
"""Last tokens of the prompt that the first text of a response is decoded with."""

Emit = Callable[[Piece], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Means:
    """What every request of a router shares."""

    fleet: Fleet
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    config: RouterConfig
    clock: Clock
    draft_lengths: DraftLengths
    tracer: Tracer | None
    metrics: RouterMetrics


async def generate(
    means: Means, request: PreparedRequest, started: float, deadline: Deadline, emit: Emit
) -> None:
    """Makes one choice's response; its streams end with this call, however it ends.

    Args:
        means: What requests share.
        request: What to make, with the choice's own seed.
        started: Clock reading when the request came.
        deadline: When nobody wants it any more.
        emit: Takes each piece as it is decided; the last one has an ending.

    Raises:
        FlyServeError: The response cannot be finished.
    """
    async with open_response(means, request, started, deadline) as response:
        while response.speculation.finish_reason is None:
            decision = await play_round(response)
            if (piece := make_piece(response, decision, means.tokenizer)) is not None:
                await emit(piece)


@asynccontextmanager
async def open_response(
    means: Means, request: PreparedRequest, started: float, deadline: Deadline
) -> AsyncIterator[Response]:
    """A target's stream and, where drafts are wanted, a drafter's; both are ended on leaving."""
    make_opening = partial(_opening, request, deadline)
    config, fleet = means.config, means.fleet
    async with AsyncExitStack() as sides:
        target = TargetSide(
            fleet,
            make_opening,
            config.verify_timeout_s,
            config.replica_wait_s,
            request.logprobs,
            request.key,
            request.weight_fingerprint,
        )
        await sides.enter_async_context(target)
        drafter = None
        if request.plan.drafts:
            drafter = DrafterSide(fleet, make_opening, config.draft_timeout_s, means.clock, request.key)
            await sides.enter_async_context(drafter)
        text = ResponseText(means.tokenizer.decode, request.prompt_ids[-_TEXT_CONTEXT:], request.stop)
        speculation, ledger = await _begin(request, text), LogprobLedger(means.tokenizer)
        draft_length = means.draft_lengths.of_response(request.plan, target.replica)
        yield Response(
            request,
            speculation,
            text,
            ledger,
            target,
            drafter,
            draft_length,
            means.clock,
            deadline,
            started,
            means.metrics.by_mode[request.plan.mode],
            current_span(),
        )
        if drafter is not None:
            drafter.conclude(speculation.sequence, speculation.decided_length)


def _opening(request: PreparedRequest, deadline: Deadline) -> Open:
    """How every stream of a request begins; raises DeadlineExceeded where its time is over."""
    return Open(
        request_id=request.request_id,
        prompt_length=len(request.prompt_ids),
        sampling=request.sampling,
        priority=request.priority,
        deadline_ms=deadline.remaining_ms(),
        cache_salt=request.cache_salt,
        entropy=request.plan.rule.entropy,
        without_sub_drafter=not request.plan.sub_drafter,
        num_logprobs=request.logprobs,
    )


async def _begin(request: PreparedRequest, text: ResponseText) -> Speculation:
    """The speculation of a new response, or of one that goes on behind what its client has received."""
    received, is_long = request.received_ids, len(request.received_ids) > _MANY_RECEIVED
    if not (await asyncio.to_thread(text.resume, received) if is_long else text.resume(received)):
        raise InvalidRequest.of("resume", "holds a stop string: the response has ended")
    limits = ResponseLimits(request.max_new_tokens, request.sampling.ending_ids)
    return Speculation(request.prompt_ids, request.plan.rule, limits, text.find_stop, received)


def make_piece(response: Response, decision: Decision, tokenizer: Tokenizer) -> Piece | None:
    """What a round gives to the client; None where it has nothing to show."""
    tokens = tuple(_tokens(response, decision, tokenizer))
    if response.speculation.finish_reason is not None:
        text = response.text.take() + response.text.flush()
        return Piece(text, tokens, close(response), response.take_rounds())
    text = response.text.take()
    return Piece(text, tokens, rounds=response.take_rounds()) if tokens or text else None


def _tokens(response: Response, decision: Decision, tokenizer: Tokenizer) -> Iterator[ResponseToken]:
    """The tokens that a round decided, each with its text and what the target says of it."""
    first = response.speculation.decided_length - len(decision.decided)
    texts = response.text.take_token_texts()
    for index, (decided, text) in enumerate(zip(decision.decided, texts, strict=True)):
        choice_text = "" if decided.token == decided.choice else tokenizer.pieces((decided.choice,))[0]
        yield ResponseToken(decided, text, choice_text, response.logprobs.take(first + index, decided))


def close(response: Response) -> Ending:
    """Adds up how the response was made."""
    finish_reason, statistics = response.speculation.finish_reason, response.speculation.statistics
    assert finish_reason is not None
    drafter_links = (response.drafter.links,) if response.drafter else ()
    for links in (response.target.links, *drafter_links):
        statistics.wire_bytes += links.num_bytes
        statistics.replays += links.replays
    statistics.seed = response.request.sampling.seed
    statistics.total_s = response.clock.now() - response.started
    response.metrics.record_response(finish_reason, statistics)
    if response.span is not None:
        trace_response(response.span, response.request, finish_reason, statistics)
    return Ending(finish_reason, statistics, (*response.request.warnings, *_warnings(response)))


def _warnings(response: Response) -> tuple[str, ...]:
    if not response.rounds_without or response.drafter is None:
        return ()
    rounds = f"{response.rounds_without} of {response.speculation.statistics.rounds} rounds"
    return (f"{rounds} were decoded without a draft: {response.drafter.fault}",)
