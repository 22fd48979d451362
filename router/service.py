"""What every public face of the router shares: checks a request, admits it, generates its choices."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from fly.errors import InvalidRequest
from fly.messages import Role
from router.admission.admission import Admission
from router.deployment_info import describe
from router.generation.choices import EmitOfChoice, generate_choices, patient
from router.generation.generation import Means
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
    """Serves requests for text, whatever protocol they came by."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._quotas = Quotas(means.clock)
        self._admission = Admission(means.config.max_concurrent, means.config.max_queued, means.clock)
        means.metrics.requests_queued.set_function(lambda: self._admission.queued)
        for role in means.fleet.num_ready():
            means.metrics.replicas.labels(role.value).set_function(partial(self._num_ready, role))

    async def describe(self) -> DeploymentInfo:
        """What is served, and its limits.

        Raises:
            NotReady: No target serves, nor came to in time.
        """
        target, drafter = await self._paired()
        return describe(target.info, drafter.info if drafter else None, self._means.config)

    @property
    def is_ready(self) -> bool:
        """Whether a target can take a request at once."""
        return bool(self._means.fleet.targets.ready(any_replica))

    async def serve(
        self,
        request: GenerateRequest,
        time_remaining_s: float | None,
        make_emit: Callable[[Header], EmitOfChoice],
        traceparent: str = "",
    ) -> Header:
        """Checks, admits and generates one request; all its work ends with this call, however it ends.

        Args:
            request: As the client gave it.
            time_remaining_s: Until nobody wants the response any more; None is for ever.
            make_emit: Told the header once the request is accepted; gives what takes each piece.
            traceparent: Of the client's trace (W3C), where it has one.

        Raises:
            FlyServeError: The request breaks a limit, finds no place, or cannot be finished.
        """
        means, clock = self._means, self._means.clock
        started, deadline = clock.now(), Deadline(clock, time_remaining_s)
        caller = current_caller()
        tenant = caller.name or request.cache_salt
        with (
            observed_request(means.metrics, means.tracer, clock, traceparent) as observed,
            self._quotas.counted(caller),
        ):
            self._admission.check(tenant, deadline)
            prepared = await self._prepare(request)
            prepared = replace(prepared, cache_salt=caller.salted(prepared.cache_salt))
            header = _header(prepared)
            observed.accepted(prepared)
            async with self._admission.place(tenant, deadline):
                observed.admitted()
                with patient(make_emit(header), means.config.write_timeout_s) as emit:
                    await generate_choices(means, prepared, started, deadline, emit)
        return header

    async def tokenize(self, text: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """The token ids of a text, and each one's own text.

        Raises:
            InvalidRequest: The text is too long.
        """
        limit = self._means.config.limits.prompt_characters
        if len(text) > limit:
            raise InvalidRequest.of("text", f"has {len(text)} characters, at most {limit}")
        tokenizer = self._means.tokenizer
        ids = tuple(await _off_loop_if_long(text, lambda: tokenizer.encode(text)))
        return ids, tuple(tokenizer.pieces(ids))

    async def render_chat(
        self, messages: Sequence[Mapping[str, str]], variables: Mapping[str, Any]
    ) -> tuple[int, ...]:
        """The token ids of a conversation, up to where the model answers.

        Args:
            messages: Each with its role and content.
            variables: Further ones that the chat template may read.

        Raises:
            InvalidRequest: The messages are too long, or the chat template rejects them or is missing.
        """
        limit, texts = self._means.config.limits.prompt_characters, [m["content"] for m in messages]
        if (length := sum(map(len, texts))) > limit:
            raise InvalidRequest.of("messages", f"have {length} characters, at most {limit}")
        template = self._means.chat_template
        return await _off_loop_if_long("".join(texts), lambda: template.render(messages, variables))

    async def tokenize_chat(
        self, messages: Sequence[Mapping[str, str]]
    ) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """The token ids of a conversation, and each one's own text; raises what `render_chat` does."""
        ids = await self.render_chat(messages, {})
        return ids, tuple(self._means.tokenizer.pieces(ids))

    async def close(self) -> None:
        """Lets go of every replica."""
        await self._means.fleet.close()

    def _num_ready(self, role: Role) -> int:
        return self._means.fleet.num_ready()[role]

    async def _prepare(self, request: GenerateRequest) -> PreparedRequest:
        weights = request.resume.weight_fingerprint if request.resume else ""
        means, (target, _) = self._means, await self._paired(with_weights(weights))

        def prepared() -> PreparedRequest:
            tokenizer = means.tokenizer
            return prepare(request, tokenizer.encode, tokenizer.eos_ids, target.info, means.config)

        return await _off_loop_if_long(request.prompt, prepared)

    async def _paired(self, accepts: Accepts = any_replica) -> tuple[Replica, Replica | None]:
        """A target and a drafter for what they serve; waits for a target for a while."""
        fleet = self._means.fleet
        await fleet.targets.wait(accepts, self._means.config.replica_wait_s)
        return fleet.paired(accepts)


def _header(request: PreparedRequest) -> Header:
    origin = Origin(
        request.plan.mode, request.sampling.seed, request.weight_fingerprint, request.max_new_tokens
    )
    return Header(request.request_id, len(request.prompt_ids), origin)


async def _off_loop_if_long(text: str | tuple[int, ...], work: Callable[[], T]) -> T:
    """Does the work in a thread where tokenizing would hold up other requests."""
    if isinstance(text, str) and is_slow_to_encode(text):
        return await asyncio.to_thread(work)
    return work()
