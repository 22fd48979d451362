"""The sub-drafter as the engine's thread sees it: questions go out, answers are there or not."""

import asyncio
import logging
from collections import deque
from dataclasses import dataclass

from fly.errors import FlyServeError
from fly.tokens import TokenSequence
from services.common.streams import DrafterStream
from services.engine.sequence import EngineSequence

logger = logging.getLogger(__name__)

_LONGEST_GUESS = 6
"""Tokens of a guess that one forward scores: most guesses fail early, and every row costs."""

_PATIENCE = 6
"""Tokens by which the sequence must have grown since a question whose answer was of no use, before the next.

A question is not free: the event loop that sends it takes its turns from the thread that drafts."""


@dataclass(frozen=True, slots=True)
class _Question:
    """The sequence from `base` on, and what identifies it as a whole."""

    base: int
    tail: tuple[int, ...]
    decided: int
    max_tokens: int
    prefix_hash: int

    @property
    def length(self) -> int:
        return self.base + len(self.tail)

    def precedes(self, sequence: EngineSequence) -> bool:
        """The sequence begins with what was asked about."""
        known = sequence.tokens
        return self.length <= len(known) and known.prefix_hash(self.length) == self.prefix_hash


class RemoteGuesser:
    """Asks one sub-drafter about one sequence.

    `take` belongs to the engine's thread, `run` to the event loop. NOTE: between them go only the inbox (a
    deque) and single assignments, which are atomic.
    """

    def __init__(self, stream: DrafterStream) -> None:
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._inbox: deque[_Question] = deque()
        self._asked: _Question | None = None
        self._answer: tuple[_Question, tuple[int, ...]] | None = None
        self._base = 0
        self._has_failed = False

    def take(self, sequence: EngineSequence, max_tokens: int) -> tuple[int, ...]:
        """As `Guesser.take`."""
        if max_tokens < 1 or self._has_failed:
            return ()
        if guess := self._usable(sequence):
            return guess[: min(max_tokens, _LONGEST_GUESS)]
        if not self._has_asked(sequence):
            self._ask(sequence, max_tokens)
        return ()

    async def run(self) -> None:
        """Sends the questions, of several the latest, until it is cancelled or the sub-drafter fails."""
        mirror = TokenSequence()
        async with self._stream:
            while True:
                await self._wake.wait()
                self._wake.clear()
                try:
                    await self._answer_latest(mirror)
                except FlyServeError as error:
                    logger.warning("the sub-drafter is lost, drafting goes on without it: %s", error)
                    self._has_failed = True
                    return

    async def _answer_latest(self, mirror: TokenSequence) -> None:
        question = None
        while self._inbox:
            question = self._inbox.popleft()
            mirror.truncate(question.base)
            mirror.extend(question.tail)
        if question is not None:
            draft = await self._stream.draft(mirror, question.decided, question.max_tokens)
            self._answer = (question, draft.tokens)

    def _has_asked(self, sequence: EngineSequence) -> bool:
        """The latest question is about this sequence, and it is not long ago."""
        if self._asked is None or not self._asked.precedes(sequence):
            return False
        return len(sequence) < self._asked.length + _PATIENCE

    def _usable(self, sequence: EngineSequence) -> tuple[int, ...]:
        if self._answer is None:
            return ()
        question, tokens = self._answer
        if not question.precedes(sequence):
            return ()
        used = sequence.tokens.ids[question.length :]
        return tokens[len(used) :] if tuple(used) == tokens[: len(used)] else ()

    def _ask(self, sequence: EngineSequence, max_tokens: int) -> None:
        known, base = sequence.tokens, self._base
        question = _Question(
            base=base,
            tail=tuple(known.ids[base:]),
            decided=sequence.decided,
            max_tokens=max_tokens,
            prefix_hash=known.prefix_hash(len(known)),
        )
        self._base = sequence.decided
        self._asked = question
        self._inbox.append(question)
        self._loop.call_soon_threadsafe(self._wake.set)
