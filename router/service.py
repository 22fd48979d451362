"""What every public face of the router shares: checks a request, admits it, generates its choices."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from fly.errors import InvalidRequest
from fly.presets import PRESETS
from fly.request import GenerateRequest
from fly.response import Chunk, DeploymentInfo, Origin, TextToken
from router.admission.admission import Admission
from router.generation.choices import generate_choices, patient
from router.generation.generation import Emit, Means
from router.generation.header import Header
from router.generation.observation import ObservedRequest
from router.replicas.pools import Accepts, Replica, any_replica, with_weights
from router.requests.deadline import Deadline
from router.requests.request import PreparedRequest
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
        means.observer.watch(lambda: self._admission.queued, means.fleet.num_ready)

    async def describe(self) -> DeploymentInfo:
        """Return the models, defaults and limits of this deployment.

        Raises:
            NotReady: No target became ready in time.
        """
        target, drafter = await self._paired()
        config = self._means.config
        return DeploymentInfo(
            target=target.info,
            drafter=drafter.info if drafter else None,
            default_speculation=config.speculation.params,
            max_new_tokens_limit=config.limits.max_new_tokens,
            draft_length_limit=config.limits.draft_length,
            choices_limit=config.limits.choices,
            logprobs_limit=config.limits.logprobs,
            presets=tuple(PRESETS),
        )

    @property
    def is_ready(self) -> bool:
        """Whether a target can take a request at once."""
        return bool(self._means.fleet.targets.ready(any_replica))

    async def serve(
        self,
        request: GenerateRequest,
        time_remaining_s: float | None,
        emit: Emit,
        traceparent: str = "",
    ) -> Header:
        """Checks, admits and generates one request; all its work ends with this call, however it ends.

        Args:
            request: As the client gave it.
            time_remaining_s: Until nobody wants the response any more; None is for ever.
            emit: Takes each chunk as it is decided.
            traceparent: Of the client's trace (W3C), where it has one.

        Raises:
            FlyServeError: The request breaks a limit, finds no place, or cannot be finished.
        """
        means, clock = self._means, self._means.clock
        started, deadline = clock.now(), Deadline(clock, time_remaining_s)
        caller = current_caller()
        tenant = caller.name or request.cache_salt
        with (
            ObservedRequest(means.observer, means.tracer, clock, traceparent) as observed,
            self._quotas.counted(caller),
        ):
            self._admission.check(tenant, deadline)
            prepared = await self._prepare(request)
            prepared = replace(prepared, cache_salt=caller.salted(prepared.cache_salt))
            header = _header(prepared)
            observed.accepted(prepared)
            async with self._admission.place(tenant, deadline):
                observed.admitted()
                with patient(_with_header(emit, header), means.config.write_timeout_s) as emit_in_time:
                    await generate_choices(means, prepared, started, deadline, emit_in_time)
        return header

    async def tokenize(self, text: str) -> tuple[TextToken, ...]:
        """Return the tokens of a text.

        Raises:
            InvalidRequest: The text is too long.
        """
        limit = self._means.config.limits.prompt_characters
        if len(text) > limit:
            raise InvalidRequest.of("text", f"has {len(text)} characters, at most {limit}")
        tokenizer = self._means.tokenizer
        return self._text_tokens(await _off_loop_if_long(text, lambda: tokenizer.encode(text)))

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

    async def tokenize_chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[TextToken, ...]:
        """Return the tokens of a conversation; raises what `render_chat` does."""
        return self._text_tokens(await self.render_chat(messages, {}))

    def _text_tokens(self, ids: Sequence[int]) -> tuple[TextToken, ...]:
        return tuple(map(TextToken, ids, self._means.tokenizer.pieces(ids)))

    async def close(self) -> None:
        """Lets go of every replica."""
        await self._means.fleet.close()

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


async def _off_loop_if_long(text: str | tuple[int, ...], work: Callable[[], T]) -> T:
    """Does the work in a thread where tokenizing would hold up other requests."""
    if isinstance(text, str) and is_slow_to_encode(text):
        return await asyncio.to_thread(work)
    return work()
