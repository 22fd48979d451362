"""One choice: open the streams, run rounds, emit, close."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial

from flyserve.core.errors import NotReady
from flyserve.core.lookup_benefit import LookupBenefit
from flyserve.core.response import Chunk, Statistics
from flyserve.core.round_record import Learner
from flyserve.core.types import Decision, FinishReason, Mode
from router.generation.context import RouterContext
from router.generation.drafts.drafter import DrafterDrafts
from router.generation.drafts.drafter_session import DrafterSession
from router.generation.drafts.sources import DraftSources
from router.generation.extension import ExtensionLength
from router.generation.logprobs import PendingLogprobs
from router.generation.opening import begin, begin_spans, extension_interval_s, open_message
from router.generation.recorder import Recorder
from router.generation.replica_session import NoRoom
from router.generation.response import Response, make_chunk
from router.generation.round import SpeculativeResponse
from router.generation.standalone import open_standalone
from router.generation.target_session import TargetSession, WaitForPlace
from router.requests.request import Deadline, PreparedRequest

Emit = Callable[[Chunk], Awaitable[None]]


async def generate(
    context: RouterContext,
    request: PreparedRequest,
    index: int,
    started: float,
    deadline: Deadline,
    wait_for_place: WaitForPlace,
    emit: Emit,
) -> None:
    """Generate one choice. Its streams end with this call, also if it fails or is cancelled.

    `request` has the seed of this choice; the last chunk has a finish reason. `wait_for_place` is called when
    all targets refuse the sequence. Other arguments and errors are those of `generate_choices`.
    """
    if not request.max_new_tokens:
        await emit(_empty_chunk(context, request, index, started))
        return
    async with open_response(context, request, started, deadline, wait_for_place) as response:
        while response.speculation.finish_reason is None:
            deadline.remaining_ms()
            decision = await _decide(response)
            if (chunk := make_chunk(response, index, decision, context.tokenizer)) is not None:
                await emit(chunk)


async def _decide(response: Response) -> Decision:
    """Decide and record a round; end a response that has tokens and is too long for the replicas left."""
    try:
        round = await response.decide_round()
    except NoRoom as error:
        if not response.speculation.statistics.emitted:
            raise NotReady(str(error)) from None
        return response.speculation.end()
    response.recorder.record(round)
    return round.decision


def open_response(
    context: RouterContext,
    request: PreparedRequest,
    started: float,
    deadline: Deadline,
    wait_for_place: WaitForPlace,
) -> AbstractAsyncContextManager[Response]:
    """Open the streams of a response, which end with the block: those of its mode."""
    if request.plan.mode is Mode.DRAFT:
        return open_standalone(context, request, started, deadline)
    return open_speculative(context, request, started, deadline, wait_for_place)


@asynccontextmanager
async def open_speculative(
    context: RouterContext,
    request: PreparedRequest,
    started: float,
    deadline: Deadline,
    wait_for_place: WaitForPlace,
) -> AsyncIterator[SpeculativeResponse]:
    """Open a target session and, if drafts are wanted, a drafter session; both end with the block."""
    make_open = partial(open_message, request, deadline)
    async with AsyncExitStack() as sessions:
        target = TargetSession(context, request, make_open, wait_for_place)
        await sessions.enter_async_context(target)
        drafter = None
        if request.plan.drafts:
            drafter = await sessions.enter_async_context(DrafterSession(context, request, make_open))
        speculation, text = await begin(request, context.tokenizer)
        costs, own = target.replica.lookup_costs, target.replica.info.costs
        extension = ExtensionLength(
            extension_interval_s(request, context.config),
            usual_s=costs.forward_s or None,
            decodes_ahead=own is not None and own.rows_add_up,
        )
        lookup = LookupBenefit(costs, extension.fitting)
        learners: list[Learner] = [extension, lookup]
        drafts = None
        if drafter is not None:
            drafts = _drafts(context, request, target, drafter, lookup)
            learners.append(drafts)
        yield SpeculativeResponse(
            request=request,
            speculation=speculation,
            text=text,
            clock=context.clock,
            recorder=Recorder(context, request, speculation.statistics, started, learners),
            logprobs=PendingLogprobs(context.tokenizer),
            target=target,
            drafts=drafts,
            extension=extension,
            strict_spans=await begin_spans(request, context.tokenizer),
        )
        if drafter is not None:
            drafter.conclude(speculation.sequence, speculation.decided_length)


def _drafts(
    context: RouterContext,
    request: PreparedRequest,
    target: TargetSession,
    session: DrafterSession,
    lookup: LookupBenefit,
) -> DraftSources:
    """Return the sources of a response's drafts; `lookup` weighs those of drafters that look tokens up."""
    plan, replicas, config = request.plan, context.replicas, context.config
    drafter = DrafterDrafts(
        session,
        plan,
        config.draft_patience,
        lookup if replicas.looks_up else None,
        context.clock,
        plan.rule.reproducible_drafts or replicas.can_pay(target.replica, plan.draft_length),
        config.has_drafter,
    )
    return DraftSources(request, drafter, config.speculation.draft_length.max_sequences)


def _empty_chunk(context: RouterContext, request: PreparedRequest, index: int, started: float) -> Chunk:
    """Return the only chunk of a choice that has no tokens: of its prompt alone."""
    reason = FinishReason.LENGTH
    statistics = Recorder(context, request, Statistics(), started, ()).finish(reason)
    return Chunk(
        choice_index=index,
        text="",
        finish_reason=reason,
        statistics=statistics,
        warnings=request.warnings,
    )
