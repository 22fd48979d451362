"""vLLM as a drafter: a draft is one request of ordinary generation, or one per token when it samples."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from fly.errors import InvalidRequest
from fly.limits import MOST_PROPOSED
from fly.messages import Draft, DraftStep, Load, ModelInfo, Open
from fly.sequence import SequenceUpdate, StaleState
from fly.types import SparseDistribution
from services.common.telemetry.instrumented_stream import DraftSteps
from services.engine.base import Scores
from services.engine.future import WaitReport
from services.engine.vllm.engine import VllmEngine
from services.engine.vllm.limits import check_exact
from services.engine.vllm.rows import Rows
from services.engine.vllm.scoring import TOP_K, draw_drafts, num_candidates, score_rows
from services.engine.vllm.sequence import VllmSequence
from services.lookup.index.budget import IndexBudget


class VllmDrafter:
    """A `DrafterEngine` on a running vLLM engine; it uses no sub-drafter."""

    def __init__(self, engine: VllmEngine, max_draft: int) -> None:
        self._engine, self._max_draft = engine, max_draft
        self.index_budget = IndexBudget(0)
        self.level_gains: Mapping[str, Callable[[], float]] = {}

    @property
    def info(self) -> ModelInfo:
        return self._engine.info

    def load(self) -> Load:
        return self._engine.load()

    @asynccontextmanager
    async def open(self, opening: Open, report: WaitReport | None = None) -> AsyncIterator[DraftSteps]:
        if opening.standalone:
            check_exact(opening, self._engine.max_logprobs)
        # A full drafter refuses at once: its router decodes without drafts meanwhile.
        async with self._engine.open(opening, waits=False) as sequence:
            yield VllmDraftSession(self._engine, sequence, self._max_draft)

    async def failure(self) -> None:
        await self._engine.failure()

    async def stop(self) -> None:
        await self._engine.stop()


class VllmDraftSession:
    """The session of one stream.

    A draft needs no exact distribution, because the target verifies it: filters beyond the most likely
    tokens, penalties and biases are left to the target. Without a target, they are refused.
    """

    def __init__(self, engine: VllmEngine, sequence: VllmSequence, max_draft: int) -> None:
        self._engine, self._sequence, self._max_draft = engine, sequence, max_draft
        self._num_candidates = min(MOST_PROPOSED, engine.max_logprobs)
        self._is_standalone = sequence.opening.standalone
        if self._is_standalone:
            self._num_candidates = num_candidates(sequence.opening.sampling, None, TOP_K, engine.max_logprobs)

    async def step(self, step: DraftStep) -> Draft:
        """Apply the update and draft after it."""
        sequence = self._sequence
        sequence.apply(step.update)
        most = min(step.max_tokens, self._max_draft, sequence.num_free - 1) if len(sequence) else 0
        sampling = sequence.opening.sampling
        ending_ids = sampling.ending_ids if step.end_at_stop else frozenset[int]()
        distributions: tuple[SparseDistribution, ...] = ()
        if most <= 0:
            tokens: tuple[int, ...] = ()
        elif sampling.temperature > 0:
            tokens, distributions = await self._draw(most, ending_ids)
        else:
            tokens = await self._decode(most, ending_ids)
        return Draft(
            step.update.step_id,
            tokens,
            forwards=len(tokens),
            distributions=distributions,
            times=sequence.times,
            load=self._engine.load(),
        )

    async def finish(self, last: SequenceUpdate) -> None:
        """Apply the last update; ignore an invalid one."""
        with suppress(StaleState, InvalidRequest):
            self._sequence.apply(last)

    async def _decode(self, most: int, ending_ids: frozenset[int]) -> tuple[int, ...]:
        """Draft greedily, in one request."""
        answer = await self._sequence.decode(most, None, ending_ids)
        vocab_size = self._engine.info.vocab_size
        invalid = (index for index, token in enumerate(answer.tokens) if token >= vocab_size)
        tokens = answer.tokens[: next(invalid, None)]
        self._sequence.extend(tokens)
        return tokens

    async def _draw(
        self, most: int, ending_ids: frozenset[int]
    ) -> tuple[tuple[int, ...], tuple[SparseDistribution, ...]]:
        """Draw token after token, with the noise or from the distributions that the target expects."""
        sequence, start = self._sequence, len(self._sequence)
        distributions = list[SparseDistribution]()
        while len(sequence) - start < most:
            answer = await sequence.score(0, self._num_candidates)
            assert answer.rows is not None
            rows = answer.rows.within(self._engine.info.vocab_size)
            scores = self._scores(rows)
            sequence.extend(scores.choices)
            distributions += scores.distributions
            if scores.choices[0] in ending_ids:
                break
        return tuple(sequence.tokens.ids[start:]), tuple(distributions)

    def _scores(self, rows: Rows) -> Scores:
        """Return the token after the sequence: as a target draws it if there is none."""
        sampling, position = self._sequence.opening.sampling, len(self._sequence)
        if self._is_standalone:
            vocab_size = self._engine.info.vocab_size
            return score_rows(rows, (-1,), sampling, position, vocab_size=vocab_size)
        return draw_drafts(rows, sampling, position, MOST_PROPOSED)
