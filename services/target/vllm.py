"""vLLM as a target: scores drafts by their prompt log-probabilities, and decodes by itself."""

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from fly.messages import Extend, Open, StepTimes, VerifyStep
from fly.sequence import SequenceUpdate
from fly.types import SparseDistribution
from services.common.telemetry.instrumented_stream import VerifySteps
from services.engine.base import Scores
from services.engine.future import WaitReport
from services.engine.vllm.engine import VllmEngine
from services.engine.vllm.limits import check_exact
from services.engine.vllm.requests import TokenAnswer
from services.engine.vllm.rows import Rows
from services.engine.vllm.run import DecodingRun
from services.engine.vllm.scoring import greedy_choices, num_candidates, position_logprobs, score_rows
from services.engine.vllm.sequence import VllmSequence
from services.engine.vllm_args import MIN_LOGPROBS
from services.target.session import Target, TargetSession


class VllmTarget(Target):
    """A `TargetEngine` on a running vLLM engine."""

    def __init__(self, engine: VllmEngine) -> None:
        super().__init__(engine)
        self._engine = engine

    @asynccontextmanager
    async def open(self, opening: Open, report: WaitReport | None = None) -> AsyncIterator[VerifySteps]:
        check_exact(opening, self._engine.max_logprobs)
        async with self._engine.open(opening, report) as sequence:
            session = VllmVerifySession(self._engine, sequence)
            try:
                yield session
            finally:
                await session.close()


_AHEAD_TOKENS = 64
"""Tokens that vLLM decodes at a time once a client has extended a sequence twice in a row."""
_PLAIN_AHEAD_TOKENS = 512
"""The same without entropies: no draft is expected to end the run."""


class VllmVerifySession(TargetSession):
    """Applies steps to a sequence and scores its last positions.

    Between two extensions vLLM goes on decoding; any other step drops what it has decoded meanwhile.
    """

    def __init__(self, engine: VllmEngine, sequence: VllmSequence) -> None:
        super().__init__(engine, sequence)
        self._engine, self._sequence = engine, sequence
        opening = sequence.opening
        self._sampling, self._num_logprobs = opening.sampling, opening.num_logprobs
        self._num_candidates = num_candidates(
            self._sampling, opening.num_logprobs, MIN_LOGPROBS, engine.max_logprobs
        )
        self._is_plain = opening.without_entropies and opening.num_logprobs is None
        self._run: DecodingRun | None = None
        self._awaited: tuple[int, ...] | None = None

    async def _score(self, step: VerifyStep | Extend) -> tuple[Scores, StepTimes]:
        scores = await (self._extend(step) if isinstance(step, Extend) else self._verify(step))
        return scores, self._sequence.times

    async def close(self) -> None:
        """End what vLLM is decoding."""
        run, self._run = self._run, None
        if run is not None:
            await run.close()

    async def _apply(self, update: SequenceUpdate, extends: bool) -> bool:
        """Apply an update; return True if it continues an extension. Otherwise what vLLM decodes ends."""
        before = len(self._sequence)
        try:
            is_kept = self._sequence.apply(update) == before
        except BaseException:
            await self.close()
            raise
        added = tuple(self._sequence.tokens.ids[before:]) if is_kept else None
        continues = extends and added is not None and added == self._awaited
        self._awaited = None
        if not continues:
            await self.close()
        return continues

    async def _verify(self, step: VerifyStep) -> Scores:
        length = step.update.keep + len(step.update.tokens)
        if not step.num_drafts and self._sampling.temperature == 0:
            # One token is an extension too, except that its client appends it.
            scores = await self._extend(Extend(step.update, 1))
            self._sequence.truncate(length)
            self._awaited = scores.choices
            return scores
        await self._apply(step.update, extends=False)
        proposals = self._proposals(step)
        answer = await self._sequence.score(step.num_drafts, self._num_candidates)
        return self._scores(answer, length - step.num_drafts, proposals)

    async def _extend(self, step: Extend) -> Scores:
        continues = await self._apply(step.update, extends=True)
        most = min(step.max_tokens, self._sequence.num_free)
        if self._sampling.temperature == 0:
            scores = await (self._continue(most) if continues else self._decode(most))
            self._awaited = ()
            return scores
        # NOTE: vLLM's own noise is not the one that a verification shares: every token is drawn here.
        parts = list[Scores]()
        while not parts or (len(parts) < most and parts[-1].choices[0] not in self._sampling.ending_ids):
            scores = await self._draw()
            self._sequence.extend(scores.choices)
            parts.append(scores)
        return Scores.joined(parts)

    async def _draw(self) -> Scores:
        """Choose one token."""
        answer = await self._sequence.score(0, self._num_candidates)
        return self._scores(answer, len(self._sequence))

    async def _decode(self, max_tokens: int) -> Scores:
        """Let vLLM decode greedily, in one request."""
        ending_ids = self._sampling.ending_ids
        answer = await self._sequence.decode(max_tokens, self._num_candidates, ending_ids)
        assert answer.rows is not None
        return self._decoded(answer.tokens, answer.rows)

    async def _continue(self, max_tokens: int) -> Scores:
        """Take the next tokens of vLLM's run; start one if there is none."""
        if self._run is None or self._run.is_spent:
            await self.close()
            num_candidates = None if self._is_plain else self._num_candidates
            self._run = self._sequence.run(max(max_tokens, self._num_ahead()), max_tokens, num_candidates)
        tokens, rows = await self._sequence.take(self._run, max_tokens)
        scores = await self._taken(tokens) if rows is None else self._decoded(tokens, rows)
        if scores.choices != tokens:
            await self.close()
        return scores

    async def _taken(self, tokens: tuple[int, ...]) -> Scores:
        """Append tokens that vLLM decoded without scores, up to one beyond the vocabulary.

        A first one like that, which padding of the embedding makes possible, is chosen again.
        """
        vocab_size = self._engine.info.vocab_size
        tokens = tuple(itertools.takewhile(lambda token: token < vocab_size, tokens))
        scores = Scores(tokens, (), ()) if tokens else await self._draw()
        self._sequence.extend(scores.choices)
        return scores

    def _num_ahead(self) -> int:
        """Return the number of tokens that vLLM may decode before they are asked for."""
        opening, length = self._sequence.opening, len(self._sequence)
        left = opening.prompt_length + opening.max_new_tokens - length if opening.max_new_tokens else length
        ahead = _PLAIN_AHEAD_TOKENS if self._is_plain else _AHEAD_TOKENS
        return min(ahead, self._sequence.num_free, max(1, left))

    def _decoded(self, tokens: Sequence[int], rows: Rows) -> Scores:
        """Score decoded tokens and append them to the sequence.

        Where vLLM took another one of equally likely tokens than a verification does, they end with the
        choice of the verification.
        """
        rows = rows.within(self._engine.info.vocab_size)
        pairs = enumerate(zip(greedy_choices(rows), tokens, strict=True), start=1)
        count = next((number for number, (choice, taken) in pairs if choice != taken), len(rows))
        scores = score_rows(
            rows.part(0, count),
            [-1] * count,
            self._sampling,
            len(self._sequence),
            num_logprobs=self._num_logprobs,
        )
        self._sequence.extend(scores.choices)
        return scores

    def _scores(
        self, answer: TokenAnswer, first_position: int, proposals: tuple[SparseDistribution, ...] = ()
    ) -> Scores:
        assert answer.rows is not None
        vocab_size = self._engine.info.vocab_size
        rows, drafts = answer.rows.within(vocab_size), [*answer.rows.following[:-1], -1]
        scores = score_rows(
            rows, drafts, self._sampling, first_position, proposals, self._num_logprobs, vocab_size
        )
        if not self._sequence.opening.with_gaps:
            return scores
        positions = position_logprobs(rows, scores.choices, drafts, 0)
        return replace(scores, gaps=tuple(position.gap for position in positions))
