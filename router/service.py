"""The generation service behind both public APIs: check a request, admit it, generate its choices."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from flyserve.core.errors import Overloaded
from flyserve.core.messages import ModelInfo, Role
from flyserve.core.request import GenerateRequest
from flyserve.core.response import Chunk, DeploymentInfo, Origin
from flyserve.core.types import Mode
from router.admission.admission import Admission
from router.admission.replica_wait import ReplicaWait
from router.cost import cpu_s, off_loop
from router.generation.choices import generate_choices, with_write_timeout
from router.generation.context import RouterContext
from router.generation.generation import Emit
from router.generation.observation import observed_request, record_rejection
from router.replicas.pools import Accepts, any_replica, roomiest, with_room, with_weights
from router.replicas.replica import Replica
from router.requests.request import Deadline, PreparedRequest
from router.requests.validation import check_alone, prepare
from router.security.callers import current_caller
from router.security.peers import current_tenant
from router.text.message_formats import MessageFormats
from router.text.text_service import TextService
from router.tools.message import MessageFormat


class Header(NamedTuple):
    """Fields of a response's first chunk, by their names there."""

    request_id: str
    prompt_tokens: int
    origin: Origin


class GenerationService:
    """Serve generation requests of any protocol.

    Attributes:
        limits: Limits of one request.
        texts: Tokens and texts, without a model.
        message_formats: Formats of tool calls and reasoning of the model's messages.
    """

    def __init__(self, context: RouterContext) -> None:
        self._context = context
        self.limits = context.config.limits
        self.texts = TextService(
            context.tokenizer, context.chat_template, self.limits, context.replicas.longest_context
        )
        self.message_formats = MessageFormats(context.tokenizer, context.chat_template, context.config)
        config = context.config
        self._admission = Admission(
            config.max_concurrent, config.max_queued, context.clock, context.replicas.places
        )
        self._draft_admission = Admission(
            config.max_concurrent,
            0,
            context.clock,
            context.draft_model.places,
            "places for responses of the drafters' own model",
        )
        limits = config.replica_wait_s, config.max_concurrent + config.max_queued
        self._target_wait = ReplicaWait(context.replicas.targets, "target", *limits)
        self._info_wait = ReplicaWait(context.replicas.targets, "target", *limits)
        self._drafter_wait = ReplicaWait(context.replicas.drafters, "drafter", *limits)
        waits = self._target_wait, self._drafter_wait
        context.metrics.requests_queued.set_function(
            lambda: self._admission.queued + sum(wait.num_requests for wait in waits)
        )
        context.metrics.choices_queued.set_function(lambda: self.queued_choices)
        for role in context.replicas.num_ready():
            context.metrics.replicas.labels(role.value).set_function(partial(self._num_ready, role))

    async def describe(self) -> DeploymentInfo:
        """Return the models, defaults and limits; raise NotReady if no target became ready in time.

        Its callers take no place of a request that waits for a target.
        """
        await self._info_wait.until_ready(current_tenant(), any_replica)
        target, drafter = self._context.replicas.paired()
        config = self._context.config
        return DeploymentInfo(
            target=target.info,
            drafter=drafter.info if drafter else None,
            default_speculation=config.speculation.params,
            max_new_tokens_limit=config.limits.max_new_tokens,
            draft_length_limit=config.limits.draft_length,
            choices_limit=config.limits.choices,
            logprobs_limit=config.limits.logprobs,
            presets=tuple(config.speculation.rules),
            warnings=tuple(f"{name}: {alarm}" for name, alarm in self.alarms.items()),
            ending_ids=tuple(self._context.tokenizer.eos_ids),
        )

    @property
    def alarms(self) -> dict[str, str]:
        """Alarms about drafters, each with its remedy, by the names of the replicas."""
        return self._context.replicas.drafters.alarms()

    @property
    def has_target(self) -> bool:
        """True if a target is available now."""
        return bool(self._context.replicas.targets.ready(any_replica))

    @property
    def is_ready(self) -> bool:
        """True if a target is available, or is started for the next request."""
        return self.has_target or self._context.config.scales_to_zero

    @property
    def queued_choices(self) -> int:
        """Choices that wait in this router: the places that its targets lack."""
        return self._admission.queued_choices + self._target_wait.num_choices

    async def serve(
        self,
        request: GenerateRequest,
        time_remaining_s: float | None,
        emit: Emit,
        traceparent: str = "",
        streams: bool = True,
        message_format: MessageFormat | None = None,
        is_admitted: bool = False,
    ) -> Header:
        """Check, admit and generate one request. All its work ends with this call, also after an error.

        `emit` gets each chunk as it is decided; `traceparent` is the client's W3C trace context, or empty.
        `streams` is False if the client gets the response as a whole. With a `message_format` each chunk is a
        `MessageChunk`. `is_admitted` is True for the
        next part of a batch, after an earlier part has ended: it waits even where the queue is full.
        Raise FlyServeError if the request breaks a limit, is not admitted, or cannot be finished.
        """
        context, clock = self._context, self._context.clock
        started, deadline = clock.now(), Deadline(clock, time_remaining_s)
        caller = current_caller()
        tenant = current_tenant()
        with observed_request(
            context.metrics, context.tracer, clock, context.rejection_log, traceparent
        ) as observed:
            admission = self._admission_of(request)
            is_draft = admission is self._draft_admission
            if not is_admitted and (not is_draft or self.draft_model is not None):
                admission.check(tenant, deadline, request.n)
            prepared = await self._prepare(request, tenant)
            prepared = replace(
                prepared,
                cache_salt=caller.salted(prepared.cache_salt),
                streams=streams,
                message_format=message_format,
            )
            observed.accepted(prepared)
            num_choices = len(prepared.unfinished())
            async with admission.slots(
                tenant, deadline, num_choices, prepared.priority, is_admitted
            ) as slots:
                observed.admitted()
                prepared = self._with_weights(request, prepared)
                header = _header(prepared)
                with with_write_timeout(
                    _with_header(emit, header), context.config.write_timeout_s
                ) as emit_in_time:
                    await generate_choices(context, prepared, started, deadline, slots, emit_in_time)
        return header

    def check_queue(self) -> None:
        """Raise Overloaded if a request to the targets could not even wait, before its prompt is made."""
        context = self._context
        try:
            self._admission.check(current_tenant(), Deadline(context.clock, None))
        except Overloaded:
            record_rejection(context.metrics, context.rejection_log, "queue")
            raise

    def num_at_once(self, request: GenerateRequest) -> int:
        """Return the number of requests like this one that can run at the same time, at least 1."""
        return max(1, self._admission_of(request).limit // max(1, request.n))

    def _admission_of(self, request: GenerateRequest) -> Admission:
        return self._draft_admission if request.speculation.mode is Mode.DRAFT else self._admission

    async def close(self) -> None:
        """Close the connections to all replicas, and end the processes that compile grammars."""
        await self._context.grammars.close()
        await self._context.replicas.close()

    def _num_ready(self, role: Role) -> int:
        return self._context.replicas.num_ready()[role]

    @property
    def draft_model_absence(self) -> str | None:
        """Reason why the drafters do not serve their own model; None if they do."""
        return self._context.draft_model.absence

    @property
    def draft_model(self) -> ModelInfo | None:
        """The drafters' own model, if it can be requested at present."""
        ready = self._context.draft_model.ready()
        return roomiest(ready).info if ready else None

    async def _model(self, request: GenerateRequest, tenant: str) -> ModelInfo:
        """Return the model that decodes a request; of several replicas, that with the longest context."""
        accepts, context = self._accepts(request), self._context
        if request.speculation.mode is Mode.DRAFT:
            context.draft_model.check()
            await self._drafter_wait.until_ready(tenant, accepts)
            return context.draft_model.info(accepts)
        check = partial(check_alone, request, context.tokenizer, context.config)
        await self._target_wait.until_ready(tenant, accepts, request.n, check)
        return context.replicas.paired(accepts)[0].info

    def _accepts(self, request: GenerateRequest) -> Accepts:
        """Return a predicate that accepts the replicas that can decode a request: a resumed one's weights."""
        has_weights = with_weights(request.resume.weight_fingerprint if request.resume else "")
        if request.speculation.mode is not Mode.DRAFT:
            return has_weights
        return lambda drafter: has_weights(drafter) and self._context.draft_model.serves(drafter)

    def _with_weights(self, request: GenerateRequest, prepared: PreparedRequest) -> PreparedRequest:
        """Return an admitted request with the weights of replicas that have places for it.

        While a deployment gets other weights, its replicas have several; some may be of a model for which the
        request would have been checked otherwise.
        """
        replicas, accepts = self._context.replicas, self._accepts(request)
        pool = replicas.drafters if request.speculation.mode is Mode.DRAFT else replicas.targets
        has_room = with_room(prepared.needed_tokens(self.limits.default_new_tokens))
        checked = {_limits_of(each) for each in pool.ready(with_weights(prepared.weight_fingerprint))}

        def suits(replica: Replica) -> bool:
            return has_room(replica) and accepts(replica) and (not checked or _limits_of(replica) in checked)

        if (drawn := pool.draw(suits)) is None:
            return prepared
        return replace(prepared, weight_fingerprint=drawn.info.weight_fingerprint)

    async def _prepare(self, request: GenerateRequest, tenant: str) -> PreparedRequest:
        context, model = self._context, await self._model(request, tenant)
        grammar = await context.grammars.prepare(request.grammar, tenant) if request.grammar else None

        def prepared() -> PreparedRequest:
            return prepare(request, context.tokenizer, model, context.config, grammar)

        return await off_loop(_cost_s(request.prompt) + _cost_s(request.prediction), prepared)


def _limits_of(replica: Replica) -> tuple[bool, int]:
    """Return what a request is checked against, besides the context."""
    return bool(replica.info.plain_only), replica.info.vocab_size


def _header(request: PreparedRequest) -> Header:
    origin = Origin(
        mode=request.plan.mode,
        seed=request.seed,
        weight_fingerprint=request.weight_fingerprint,
        max_new_tokens=request.max_new_tokens,
    )
    return Header(request.request_id, len(request.prompt_ids), origin)


def _with_header(emit: Emit, header: Header) -> Emit:
    """Add the header to the first chunk."""
    unsent = [header]

    async def emit_with_header(chunk: Chunk) -> None:
        await emit(replace(chunk, **unsent.pop()._asdict()) if unsent else chunk)

    return emit_with_header


def _cost_s(prompt: str | Sequence[int]) -> float:
    return cpu_s(characters=len(prompt))
