"""The generation service behind both public APIs: check a request, admit it, generate its choices."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from fly.errors import InvalidRequest
from fly.messages import Role
from router.admission.admission import Admission
from router.deployment_info import describe
from router.generation.choices import EmitOfChoice, generate_choices, with_write_timeout
from router.generation.generation import RouterContext
from router.generation.observation import observed_request
from router.generation.response import DeploymentInfo, Header, Origin
from router.replicas.pools import Accepts, Replica, any_replica, with_weights
from router.requests.deadline import Deadline
from router.requests.request import GenerateRequest, PreparedRequest
from router.requests.validation import prepare
from router.security.callers import current_caller
from router.security.quotas import Quotas
from router.text.tokenizer import is_slow_to_encode

T = TypeVar("T")


class GenerationService:
    """Serve generation requests of any protocol."""

    def __init__(self, context: RouterContext) -> None:
        self._context = context
        self._quotas = Quotas(context.clock)
        self._admission = Admission(context.config.max_concurrent, context.config.max_queued, context.clock)
        context.metrics.requests_queued.set_function(lambda: self._admission.queued)
        for role in context.replicas.num_ready():
            context.metrics.replicas.labels(role.value).set_function(partial(self._num_ready, role))

    async def describe(self) -> DeploymentInfo:
        """Return the models, defaults and limits of this deployment.

        Raises:
            NotReady: No target is available within `replica_wait_s`.
        """
        target, drafter = await self._paired()
        return describe(target.info, drafter.info if drafter else None, self._context.config)

    @property
    def is_ready(self) -> bool:
        """True if a target is available now."""
        return bool(self._context.replicas.targets.ready(any_replica))

    async def serve(
        self,
        request: GenerateRequest,
        time_remaining_s: float | None,
        make_emit: Callable[[Header], EmitOfChoice],
        traceparent: str = "",
    ) -> Header:
        """Check, admit and generate one request. All its work ends with this call, also after an error.

        Args:
            request: The request as received.
            time_remaining_s: Time until the deadline; None for no deadline.
            make_emit: Called with the header once the request is accepted; returns the function that sends
                pieces.
            traceparent: W3C trace context of the client, if any.

        Raises:
            FlyServeError: The request breaks a limit, is not admitted, or cannot be finished.
        """
        context, clock = self._context, self._context.clock
        started, deadline = clock.now(), Deadline(clock, time_remaining_s)
        caller = current_caller()
        tenant = caller.name or request.cache_salt
        with (
            observed_request(context.metrics, context.tracer, clock, traceparent) as observed,
            self._quotas.counted(caller),
        ):
            self._admission.check(tenant, deadline)
            prepared = await self._prepare(request)
            prepared = replace(prepared, cache_salt=caller.salted(prepared.cache_salt))
            header = _header(prepared)
            observed.accepted(prepared)
            async with self._admission.slot(tenant, deadline):
                observed.admitted()
                with with_write_timeout(make_emit(header), context.config.write_timeout_s) as emit:
                    await generate_choices(context, prepared, started, deadline, emit)
        return header

    async def tokenize(self, text: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Return the token ids of a text, and the text of each token.

        Raises:
            InvalidRequest: The text is too long.
        """
        limit = self._context.config.limits.prompt_characters
        if len(text) > limit:
            raise InvalidRequest.of(
                "text",
                _too_long("has", len(text), limit),
            )
        tokenizer = self._context.tokenizer
        ids = tuple(await _off_loop_if_long(text, lambda: tokenizer.encode(text)))
        return ids, tuple(tokenizer.pieces(ids))

    async def render_chat(
        self, messages: Sequence[Mapping[str, str]], variables: Mapping[str, Any]
    ) -> tuple[int, ...]:
        """Return the token ids of a conversation, up to where the model answers.

        Args:
            messages: Each with its role and content.
            variables: Further variables of the chat template.

        Raises:
            InvalidRequest: The messages are too long, or there is no chat template, or it rejects them.
        """
        limit, texts = self._context.config.limits.prompt_characters, [m["content"] for m in messages]
        if (length := sum(map(len, texts))) > limit:
            raise InvalidRequest.of(
                "messages",
                _too_long("have", length, limit),
            )
        template = self._context.chat_template
        return await _off_loop_if_long("".join(texts), lambda: template.render(messages, variables))

    async def tokenize_chat(
        self, messages: Sequence[Mapping[str, str]]
    ) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Return the token ids of a conversation and the text of each token; raises as `render_chat`."""
        ids = await self.render_chat(messages, {})
        return ids, tuple(self._context.tokenizer.pieces(ids))

    async def close(self) -> None:
        """Close the connections to all replicas."""
        await self._context.replicas.close()

    def _num_ready(self, role: Role) -> int:
        return self._context.replicas.num_ready()[role]

    async def _prepare(self, request: GenerateRequest) -> PreparedRequest:
        weights = request.resume.weight_fingerprint if request.resume else ""
        context, (target, _) = self._context, await self._paired(with_weights(weights))

        def prepared() -> PreparedRequest:
            tokenizer = context.tokenizer
            return prepare(request, tokenizer.encode, tokenizer.eos_ids, target.info, context.config)

        return await _off_loop_if_long(request.prompt, prepared)

    async def _paired(self, accepts: Accepts = any_replica) -> tuple[Replica, Replica | None]:
        """Return a target and a drafter to check the request against; wait at most `replica_wait_s`."""
        replicas = self._context.replicas
        await replicas.targets.wait(accepts, self._context.config.replica_wait_s)
        return replicas.paired(accepts)


def _too_long(verb: str, length: int, limit: int) -> str:
    return f"{verb} {length} characters, at most {limit} are allowed (router.limits.prompt_characters)"


def _header(request: PreparedRequest) -> Header:
    origin = Origin(
        request.plan.mode, request.sampling.seed, request.weight_fingerprint, request.max_new_tokens
    )
    return Header(request.request_id, len(request.prompt_ids), origin)


async def _off_loop_if_long(text: str | tuple[int, ...], work: Callable[[], T]) -> T:
    """Run `work` in a thread if tokenizing the text would block the event loop."""
    if isinstance(text, str) and is_slow_to_encode(text):
        return await asyncio.to_thread(work)
    return work()
