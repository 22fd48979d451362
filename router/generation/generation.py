"""One choice: open the streams, run rounds of propose, verify, decide and emit, close."""

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
from router.generation.drafter_session import DrafterSession
from router.generation.extension import ExtensionLength
from router.generation.forced_drafts import ForcedDrafts
from router.generation.observation import trace_response
from router.generation.patience import Patience
from router.generation.predictions import Predictions
from router.generation.round import PendingLogprobs, Response, run_round
from router.generation.target_session import TargetSession, WaitForPlace
from router.metrics import RouterMetrics
from router.replicas.directory import ReplicaDirectory
from router.requests.grammars import Grammars
from router.requests.request import Deadline, PreparedRequest
from router.text.chat_template import ChatTemplate
from router.text.output import ResponseText
from router.text.tokenizer import Tokenizer
from services.common.telemetry.tracing import Tracer, current_span

_USUAL_LATE_ROUNDS = 8
"""Late rounds of a response that need no warning, as while the drafter computes its prompt."""
_MAX_INLINE_RECEIVED = 256
"""Number of tokens of a resumed response above which they are detokenized off the event loop."""
_WHOLE_INTERVALS = 10
"""Stream intervals in a step of a plain response that the client gets as a whole."""
_TEXT_CONTEXT = 5
"""Last tokens of the prompt that are used as context to decode the first token."""

Emit = Callable[[Chunk], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class RouterContext:
    """State shared by all requests of a router."""

    replicas: ReplicaDirectory
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    grammars: Grammars
    config: RouterConfig
    clock: Clock
    draft_lengths: DraftLengths
    tracer: Tracer | None
    metrics: RouterMetrics


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


@asynccontextmanager
async def open_response(
    context: RouterContext,
    request: PreparedRequest,
    started: float,
    deadline: Deadline,
    wait_for_place: WaitForPlace,
) -> AsyncIterator[Response]:
    """Open a target session and, if drafts are wanted, a drafter session; both end with the block."""
    make_open = partial(_open_message, request, deadline)
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
        )
        await sessions.enter_async_context(target)
        drafter = None
        if request.plan.drafts:
            drafter = DrafterSession(replicas, make_open, config.draft_timeout_s, context.clock, request.key)
            await sessions.enter_async_context(drafter)
        text = ResponseText(context.tokenizer.backend, request.prompt_ids[-_TEXT_CONTEXT:], request.stop)
        speculation, logprobs = await _begin(request, text), PendingLogprobs(context.tokenizer)
        draft_length = context.draft_lengths.for_response(request.plan, target.replica)
        yield Response(
            request,
            speculation,
            text,
            logprobs,
            target,
            drafter,
            draft_length,
            context.clock,
            deadline,
            started,
            context.metrics.by_mode[request.plan.mode],
            current_span(),
            Patience(config.draft_patience),
            ExtensionLength(
                extension_interval_s(request, config), decodes_ahead=bool(target.replica.info.engine)
            ),
            Predictions(request),
            ForcedDrafts(request),
        )
        if drafter is not None:
            drafter.conclude(speculation.sequence, speculation.decided_length)


def _open_message(request: PreparedRequest, deadline: Deadline) -> Open:
    """Return the first message of a stream; raises DeadlineExceeded if the deadline has passed."""
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
        max_new_tokens=request.max_new_tokens,
        without_entropies=not request.needs_entropies,
        grammar=request.grammar.form if request.grammar else "",
    )


def extension_interval_s(request: PreparedRequest, config: RouterConfig) -> float:
    """Return the longest time of the forwards of a step without drafts.

    It is longer where nobody waits for a part of the response, and the target stops where the response does.
    """
    is_free = not (request.streams or request.stop or request.plan.drafts)
    return config.stream_interval_s * (_WHOLE_INTERVALS if is_free else 1)


async def _begin(request: PreparedRequest, text: ResponseText) -> Speculation:
    """Return the speculation loop of a new response, or of one that continues after received tokens."""
    received, is_long = request.received_ids, len(request.received_ids) > _MAX_INLINE_RECEIVED
    if not (await asyncio.to_thread(text.resume, received) if is_long else text.resume(received)):
        raise InvalidRequest.of("resume", "holds a stop string: the response has ended")
    limits = ResponseLimits(request.max_new_tokens, request.sampling.ending_ids)
    return Speculation(request.prompt, request.plan.rule, limits, text.find_stop, received)


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
    drafter_connections = (response.drafter.connections,) if response.drafter else ()
    for connections in (response.target.connections, *drafter_connections):
        statistics.wire_bytes += connections.num_bytes
        statistics.replays += connections.replays
    statistics.seed = response.request.seed
    statistics.total_s = response.clock.now() - response.started
    response.metrics.record_response(finish_reason, statistics)
    if response.span is not None:
        trace_response(response.span, response.request, finish_reason, statistics)
    return statistics


def _warnings(response: Response) -> Iterator[str]:
    """Yield the reasons why rounds had no draft; a few late drafts are usual."""
    drafter, num_rounds = response.drafter, response.speculation.statistics.rounds
    if drafter is None:
        return
    if response.rounds_without_draft:
        yield f"{response.rounds_without_draft} of {num_rounds} rounds had no draft: {drafter.fault}"
    if response.late_rounds > max(_USUAL_LATE_ROUNDS, num_rounds / 2):
        yield f"{response.late_rounds} of {num_rounds} rounds did not wait for a late draft"
