"""vLLM as a target: scores drafts by their prompt log-probabilities, and decodes by itself."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fly.errors import InvalidRequest
from fly.limits import check_distributions
from fly.messages import Extend, Load, ModelInfo, Open, Verification, VerifyStep
from fly.sequence import SequenceUpdate
from fly.types import Coupling, SparseDistribution
from services.common.telemetry.instrumented_stream import VerifySteps
from services.engine.base import Scores
from services.engine.future import WaitReport
from services.engine.vllm.arguments import MIN_LOGPROBS
from services.engine.vllm.engine import VllmEngine
from services.engine.vllm.limits import check_exact
from services.engine.vllm.requests import TokenAnswer
from services.engine.vllm.scoring import greedy_choices, num_candidates, score_rows
from services.engine.vllm.sequence import VllmSequence


class VllmTarget:
    """A `TargetEngine` on a running vLLM engine."""

    def __init__(self, engine: VllmEngine) -> None:
        self._engine = engine

    @property
    def info(self) -> ModelInfo:
        return self._engine.info

    def load(self) -> Load:
        return self._engine.load()

    @asynccontextmanager
    async def open(self, opening: Open, report: WaitReport | None = None) -> AsyncIterator[VerifySteps]:
        check_exact(opening, self._engine.max_logprobs)
        async with self._engine.open(opening, report) as sequence:
            yield VllmVerifySession(self._engine, sequence)

    async def failure(self) -> None:
        await self._engine.failure()

    async def stop(self) -> None:
        await self._engine.stop()


class VllmVerifySession:
    """Applies steps to a sequence and scores its last positions."""

    def __init__(self, engine: VllmEngine, sequence: VllmSequence) -> None:
        self._engine, self._sequence = engine, sequence
        opening = sequence.opening
        self._sampling, self._num_logprobs = opening.sampling, opening.num_logprobs
        self._num_candidates = num_candidates(
            self._sampling, opening.num_logprobs, MIN_LOGPROBS, engine.max_logprobs
        )

    async def step(self, step: VerifyStep | Extend) -> Verification:
        """Apply the update of a step; score its drafts, or decode after it."""
        scores = await (self._extend(step) if isinstance(step, Extend) else self._verify(step))
        return Verification(
            step_id=step.update.step_id,
            choices=scores.choices,
            entropies=scores.entropies,
            excluded_drafts=frozenset(
                index for index, is_excluded in enumerate(scores.excluded) if is_excluded
            ),
            logprobs=scores.logprobs,
            times=self._sequence.times,
            load=self._engine.load(),
        )

    async def finish(self, last: SequenceUpdate) -> None:
        """Do nothing: a target stores nothing of finished sequences."""

    async def _verify(self, step: VerifyStep) -> Scores:
        length = step.update.keep + len(step.update.tokens)
        if step.num_drafts >= length:
            raise InvalidRequest.of("num_drafts", f"is {step.num_drafts}, must be below {length}, the length")
        self._sequence.apply(step.update)
        proposals = self._proposals(step)
        answer = await self._sequence.score(step.num_drafts, self._num_candidates)
        return self._scores(answer, length - step.num_drafts, proposals)

    async def _extend(self, step: Extend) -> Scores:
        length = step.update.keep + len(step.update.tokens)
        if step.max_tokens < 1 or length < 1:
            raise InvalidRequest.of(
                "max_tokens", f"is {step.max_tokens} after {length} tokens, both must be at least 1"
            )
        self._sequence.apply(step.update)
        is_greedy = self._sampling.temperature == 0
        parts, left = list[Scores](), min(step.max_tokens, self._sequence.num_free)
        while left > 0:
            # NOTE: vLLM's own noise is not the one that a verification shares, so a draw ends its run.
            scores = await (self._decode(left) if is_greedy else self._draw())
            self._sequence.extend(scores.choices)
            parts.append(scores)
            left -= len(scores.choices)
            if is_greedy or scores.choices[-1] in self._sampling.ending_ids:
                break
        return Scores.joined(parts)

    async def _draw(self) -> Scores:
        """Choose one token."""
        answer = await self._sequence.score(0, self._num_candidates)
        return self._scores(answer, len(self._sequence))

    async def _decode(self, max_tokens: int) -> Scores:
        """Let vLLM decode greedily.

        Where it took another one of equally likely tokens than a verification does, its run ends with the
        choice of the verification.
        """
        ending_ids = self._sampling.ending_ids
        answer = await self._sequence.decode(max_tokens, self._num_candidates, ending_ids)
        assert answer.rows is not None
        rows = answer.rows.within(self._engine.info.vocab_size)
        pairs = enumerate(zip(greedy_choices(rows), answer.tokens, strict=True), start=1)
        count = next((number for number, (choice, taken) in pairs if choice != taken), len(rows))
        first = len(self._sequence)
        return score_rows(
            rows.first(count), [-1] * count, self._sampling, first, num_logprobs=self._num_logprobs
        )

    def _scores(
        self, answer: TokenAnswer, first_position: int, proposals: tuple[SparseDistribution, ...] = ()
    ) -> Scores:
        assert answer.rows is not None
        vocab_size = self._engine.info.vocab_size
        return score_rows(
            answer.rows.within(vocab_size),
            [*answer.rows.following[:-1], -1],
            self._sampling,
            first_position,
            proposals,
            self._num_logprobs,
            vocab_size,
        )

    def _proposals(self, step: VerifyStep) -> tuple[SparseDistribution, ...]:
        """Return the distributions of the drafts, if the sequence's coupling needs them."""
        if self._sampling.coupling is not Coupling.REJECTION or self._sampling.temperature == 0:
            return ()
        drafts = self._sequence.tokens.ids[len(self._sequence) - step.num_drafts :]
        if faults := [*check_distributions(step.distributions, drafts, self._engine.info.vocab_size)]:
            raise InvalidRequest(*faults)
        return step.distributions
