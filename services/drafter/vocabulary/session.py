"""Drafts of a drafter with another vocabulary: target tokens in, target tokens out."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from flyserve.core.errors import InvalidRequest
from flyserve.core.messages import Draft, DraftStep, ModelInfo, Open
from flyserve.core.request import SamplingParams
from flyserve.core.sequence import SequenceMirror, SequenceUpdate, StaleState
from flyserve.core.types import SparseDistribution
from services.common.telemetry.instrumented_stream import DraftSteps
from services.drafter.vocabulary.mapping import VocabularyMap
from services.drafter.vocabulary.streams import TokenStreams
from services.drafter.wrapper import DrafterWrapper
from services.engine.future import WaitReport
from services.engine.interface import DrafterEngine

_INLINE_TOKENS = 2048
"""Most new tokens that are mapped on the event loop; more take milliseconds, in a thread."""


class MappedDrafter(DrafterWrapper):
    """A `DrafterEngine` that drafts for a target with another vocabulary; its streams have target tokens."""

    def __init__(
        self,
        engine: DrafterEngine,
        mapping: VocabularyMap,
        token_map_hash: str,
        max_draft: int,
    ) -> None:
        """Wrap an engine; `token_map_hash` is the target's, and a draft has at most `max_draft` tokens."""
        super().__init__(engine)
        self._map, self._token_map_hash, self._max_draft = mapping, token_map_hash, max_draft

    @property
    def info(self) -> ModelInfo:
        return replace(
            self._engine.info,
            token_map_hash=self._token_map_hash,
            vocab_size=len(self._map.target),
            # Its context counts its own tokens, of which only a session knows the number.
            context_length=0,
            vocabulary_way="text",
            vocabulary_overlap=self._map.overlap,
        )

    @asynccontextmanager
    async def open(self, opening: Open, report: WaitReport | None = None) -> AsyncIterator[DraftSteps]:
        if opening.standalone:
            raise InvalidRequest.of("standalone", "is set, but this drafter has another vocabulary")
        async with AsyncExitStack() as stack:

            def open_engine(own: Open) -> Awaitable[DraftSteps]:
                return stack.enter_async_context(self._engine.open(own, report))

            yield MappedSession(self._engine, self._map, opening, open_engine, self._max_draft)


class MappedSession:
    """The session of one stream: a client, in the drafter's tokens, of a session of the engine.

    The engine's session opens at the first tokens, when their number in the drafter's vocabulary is known. It
    drafts greedily: noise belongs to token ids, so the two models share none. A draft without noise suits
    both couplings; under `rejection` it has all of its probability on its tokens.
    """

    def __init__(
        self,
        engine: DrafterEngine,
        mapping: VocabularyMap,
        opening: Open,
        open_engine: Callable[[Open], Awaitable[DraftSteps]],
        max_draft: int,
    ) -> None:
        self._engine, self._map, self._opening = engine, mapping, opening
        self._open_engine, self._max_draft = open_engine, max_draft
        self._streams = TokenStreams(mapping)
        self._mirror = SequenceMirror()
        self._session: DraftSteps | None = None

    async def step(self, step: DraftStep) -> Draft:
        """Apply the update and draft after it.

        Raises:
            StaleState: As `TokenStreams.apply`.
            InvalidRequest: As there, or the sequence has reached the drafter's context.
        """
        step = step._replace(max_tokens=min(step.max_tokens, self._max_draft))
        streams = self._streams
        await self._apply(step.update)
        length, own_length = len(streams.target), len(streams.drafter)
        if own_length >= (context := self._engine.info.context_length):
            found = f"make {own_length} tokens of the drafter, whose context holds {context}: no draft fits"
            raise InvalidRequest.of("update.tokens", found)
        if not length:
            return Draft(step.update.step_id, (), load=self._engine.load())
        if self._session is None:
            self._session = await self._open_engine(self._own_opening())
        most = min(self._max_draft, math.ceil(step.max_tokens * own_length / length))
        draft = await self._draft(DraftStep(self._own_update(), most, step.end_at_stop))
        tokens = self._take(draft, step)
        certain = map(
            SparseDistribution.certain, tokens if self._opening.sampling.needs_distributions else ()
        )
        return draft._replace(
            step_id=step.update.step_id,
            tokens=tokens,
            sub_drafter_tokens=min(draft.sub_drafter_tokens, len(tokens)),
            distributions=tuple(certain),
            drafted_ahead=min(draft.drafted_ahead, len(tokens)),
        )

    async def finish(self, last: SequenceUpdate) -> None:
        """Apply the last update and finish the engine's session; ignore an invalid update."""
        with contextlib.suppress(StaleState, InvalidRequest):
            await self._apply(last)
            if self._session is not None:
                decided = self._streams.num_drafter_tokens(self._streams.target.decided)
                await self._session.finish(self._own_update(decided))

    async def _apply(self, update: SequenceUpdate) -> None:
        before = self._streams.target.decided
        if len(update.tokens) <= _INLINE_TOKENS:
            self._streams.apply(update)
        else:
            await asyncio.to_thread(self._streams.apply, update)
        if update.keep < before:
            # A replay, perhaps of another sequence: what was settled may have changed.
            self._mirror.forget()

    def _own_update(self, decided: int | None = None) -> SequenceUpdate:
        streams = self._streams
        return self._mirror.update(streams.drafter, (), streams.num_settled if decided is None else decided)

    async def _draft(self, step: DraftStep) -> Draft:
        assert self._session is not None
        try:
            draft = await self._session.step(step)
        except StaleState:
            self._mirror.forget()
            raise
        self._mirror.append(draft.tokens)
        return draft

    def _take(self, draft: Draft, step: DraftStep) -> tuple[int, ...]:
        """Return the target's tokens of a draft, up to one that ends the response if it must end there."""
        streams, length = self._streams, len(self._streams.target)
        tokens = streams.take(draft.tokens, step.max_tokens)
        endings = self._opening.sampling.ending_ids if step.end_at_stop else frozenset[int]()
        num_kept = next((index + 1 for index, token in enumerate(tokens) if token in endings), len(tokens))
        streams.cut(length + num_kept)
        return tokens[:num_kept]

    def _own_opening(self) -> Open:
        """Return the opening of the engine's session; the filters of tokens are left to the target."""
        streams, opening, mapping = self._streams, self._opening, self._map
        given, to_own = opening.sampling, mapping.to_drafter
        sampling = SamplingParams(
            logit_bias={to_own[token]: bias for token, bias in given.logit_bias.items() if token in to_own},
            ignore_eos=given.ignore_eos,
            stop_token_ids=tuple({to_own[token]: None for token in given.stop_token_ids if token in to_own}),
        )
        length = len(streams.drafter)
        return replace(
            opening,
            prompt_length=streams.num_drafter_tokens(min(opening.prompt_length, len(streams.target))),
            sampling=sampling,
            max_new_tokens=math.ceil(opening.max_new_tokens * length / len(streams.target)),
            grammar="",
        )
