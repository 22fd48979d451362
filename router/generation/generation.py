"""One choice's life: open, then rounds of propose, verify, decide and emit, then close."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from fly.clock import Clock
from fly.errors import InvalidRequest
from fly.messages import Open
from fly.response import Chunk, Statistics
from fly.speculation import Speculation
from fly.types import Decision, FinishReason, ResponseLimits, Token
from router.config import RouterConfig
from router.generation.draft_lengths import DraftLengths
from router.generation.drafter_session import DrafterSide
from router.generation.logprobs import PendingLogprobs
from router.generation.round import Response, play_round
from router.generation.target_session import TargetSide
from router.replicas.discovery import Fleet
from router.requests.deadline import Deadline
from router.requests.request import PreparedRequest
from router.text.chat_template import ChatTemplate
from router.text.output import ResponseText
from router.text.tokenizer import Tokenizer
from services.common.telemetry.observers import RouterObserver
from services.common.telemetry.tracing import Tracer, current_span

_MANY_RECEIVED = 256
"""Tokens of a resumed response whose detokenizing would hold up other requests."""
_TEXT_CONTEXT = 5
"""Last tokens of the prompt that the first text of a response is decoded with."""

Emit = Callable[[Chunk], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Means:
    """What every request of a router shares."""

    fleet: Fleet
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    config: RouterConfig
    clock: Clock
    draft_lengths: DraftLengths
    tracer: Tracer
    observer: RouterObserver


async def generate(
    means: Means, request: PreparedRequest, index: int, started: float, deadline: Deadline, emit: Emit
) -> None:
    """Makes one choice's response; its streams end with this call, however it ends.

    Args:
        means: What requests share.
        request: What to make, with the choice's own seed.
        index: Index of the choice.
        started: Clock reading when the request came.
        deadline: When nobody wants it any more.
        emit: Takes each chunk as it is decided; the last one has a finish reason.

    Raises:
        FlyServeError: The response cannot be finished.
    """
    async with open_response(means, request, started, deadline) as response:
        while response.speculation.finish_reason is None:
            decision = await play_round(response)
            if (chunk := make_chunk(response, index, decision, means.tokenizer)) is not None:
                await emit(chunk)


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
        speculation, ledger = await _begin(request, text), PendingLogprobs(means.tokenizer)
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
            means.observer.response(request.plan.mode),
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


def make_chunk(response: Response, index: int, decision: Decision, tokenizer: Tokenizer) -> Chunk | None:
    """Return the chunk that a round adds to a choice; None if it has neither tokens nor text."""
    tokens = tuple(_tokens(response, decision, tokenizer))
    text, finish_reason = response.text.take(), response.speculation.finish_reason
    if finish_reason is None and not tokens and not text:
        return None
    rounds = response.take_rounds()
    if finish_reason is None:
        return Chunk(choice_index=index, text=text, tokens=tokens, rounds=rounds)
    return Chunk(
        choice_index=index,
        text=text + response.text.flush(),
        tokens=tokens,
        rounds=rounds,
        finish_reason=finish_reason,
        statistics=_finish(response, finish_reason),
        warnings=(*response.request.warnings, *_warnings(response)),
    )


def _tokens(response: Response, decision: Decision, tokenizer: Tokenizer) -> Iterator[Token]:
    """Yield the tokens that a round decided, each with its texts and log-probabilities."""
    first = response.speculation.decided_length - len(decision.decided)
    texts = response.text.take_token_texts()
    for position, (decided, text) in enumerate(zip(decision.decided, texts, strict=True), start=first):
        choice_text = "" if decided.id == decided.choice else tokenizer.pieces((decided.choice,))[0]
        logprobs = response.logprobs.take(position, decided)
        yield Token(*decided[:4], text, choice_text, logprobs)


def _finish(response: Response, finish_reason: FinishReason) -> Statistics:
    """Complete the statistics of a choice that has ended."""
    statistics = response.speculation.statistics
    drafter_links = (response.drafter.links,) if response.drafter else ()
    for links in (response.target.links, *drafter_links):
        statistics.wire_bytes += links.num_bytes
        statistics.replays += links.replays
    statistics.seed = response.request.seed
    statistics.total_s = response.clock.now() - response.started
    response.observer.finished(finish_reason, statistics)
    return statistics


def _warnings(response: Response) -> tuple[str, ...]:
    if not response.rounds_without or response.drafter is None:
        return ()
    rounds = f"{response.rounds_without} of {response.speculation.statistics.rounds} rounds"
    return (f"{rounds} were decoded without a draft: {response.drafter.fault}",)
