"""One choice: open the streams, run rounds, emit, close."""

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial

from fly.draft_length.lookup_benefit import LookupBenefit
from fly.response import Chunk, Statistics
from fly.types import FinishReason, Mode
from router.generation.context import RouterContext
from router.generation.drafter_session import DrafterSession
from router.generation.extension import ExtensionLength
from router.generation.forced_drafts import ForcedDrafts
from router.generation.logprobs import PendingLogprobs
from router.generation.observation import trace_response
from router.generation.opening import begin, begin_spans, extension_interval_s, open_message
from router.generation.patience import Patience
from router.generation.predictions import Predictions
from router.generation.response import Response, make_chunk, run_round
from router.generation.round import SpeculativeResponse
from router.generation.standalone import open_standalone
from router.generation.target_session import TargetSession, WaitForPlace
from router.requests.request import Deadline, PreparedRequest
from services.common.telemetry.tracing import current_span

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
            decision = await run_round(response)
            if (chunk := make_chunk(response, index, decision, context.tokenizer)) is not None:
                await emit(chunk)


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
    config, replicas = context.config, context.replicas
    async with AsyncExitStack() as sessions:
        target = TargetSession(
            replicas,
            make_open,
            config.verify_timeout_s,
            config.replica_wait_s,
            wait_for_place,
            request.logprobs,
            request.key,
            request.weight_fingerprint,
            request.needs_entropies,
            num_tokens=request.most_tokens,
        )
        await sessions.enter_async_context(target)
        drafter = None
        if request.plan.drafts:
            drafter = DrafterSession(replicas, make_open, config.draft_timeout_s, context.clock, request.key)
            await sessions.enter_async_context(drafter)
        speculation, text = await begin(request, context.tokenizer)
        looks_up, costs = replicas.looks_up, context.draft_lengths.lookup_costs(target.replica)
        extension = ExtensionLength(
            extension_interval_s(request, config),
            usual_s=costs.forward_s or None,
            decodes_ahead=bool(target.replica.info.engine),
        )
        response = SpeculativeResponse(
            request=request,
            speculation=speculation,
            text=text,
            logprobs=PendingLogprobs(context.tokenizer),
            target=target,
            drafter=drafter,
            looks_up=looks_up,
            draft_length=context.draft_lengths.for_response(request.plan, target.replica, looks_up),
            clock=context.clock,
            deadline=deadline,
            started=started,
            metrics=context.metrics.by_mode[request.plan.mode],
            span=current_span(),
            patience=Patience(math.inf if request.plan.rule.reproducible_drafts else config.draft_patience),
            extension=extension,
            lookup=LookupBenefit(costs, extension.fitting, context.clock),
            predictions=Predictions(request),
            forced=ForcedDrafts(request),
            strict_spans=await begin_spans(request, context.tokenizer),
        )
        yield response
        response.lookup.end()
        if drafter is not None:
            drafter.conclude(speculation.sequence, speculation.decided_length)


def _empty_chunk(context: RouterContext, request: PreparedRequest, index: int, started: float) -> Chunk:
    """Return the only chunk of a choice that has no tokens: of its prompt alone."""
    reason = FinishReason.LENGTH
    statistics = Statistics(seed=request.seed, total_s=context.clock.now() - started)
    context.metrics.by_mode[request.plan.mode].record_response(reason, statistics)
    if (span := current_span()) is not None:
        trace_response(span, request, reason, statistics)
    return Chunk(
        choice_index=index,
        text="",
        finish_reason=reason,
        statistics=statistics,
        warnings=request.warnings,
    )
