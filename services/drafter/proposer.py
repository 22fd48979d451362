"""One sequence's questions to the sub-drafter, and the latest answer, as a drafting job sees them."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from fly.messages import Draft, ProposalCounts
from fly.sequence import TokenSequence
from services.drafter.local_proposer import LocalProposer
from services.drafter.worth import Worth
from services.engine.sequence import EngineSequence

LONGEST_GUESS = 15
"""Tokens of a proposal that one forward scores: with the pending token 16 rows."""

PASSAGE_TOKENS = 128
"""Tokens of snippets that are asked for while a draft is verified."""

_MIN_CONFIDENCE = 0.1
"""A proposal whose first token is less likely than this is left out: every row costs."""


@dataclass(frozen=True, slots=True)
class Question:
    """The sequence from `base` on, and what identifies it as a whole.

    Attributes:
        base: Tokens at its front that have not changed since the question before.
        tail: The tokens from there on.
        decided: Tokens that will never be rolled back.
        max_tokens: Longest proposal; 0 asks for snippets only.
        prefix_hash: Of the whole sequence.
        asked_at: On the monotonic clock, in seconds.
    """

    base: int
    tail: tuple[int, ...]
    decided: int
    max_tokens: int
    prefix_hash: int
    asked_at: float

    @property
    def length(self) -> int:
        return self.base + len(self.tail)

    def precedes(self, sequence: TokenSequence) -> bool:
        """The sequence begins with what was asked about."""
        return self.length <= len(sequence) and sequence.prefix_hash(self.length) == self.prefix_hash


class RemoteProposer:
    """As `SequenceProposer`, by questions that are sent and answered elsewhere.

    A sub-drafter that looks up answers with snippets as well; from them proposals are made here, where they
    cost no time on the wire. It is asked once per draft, while that is being verified. A model has to be
    asked whenever nothing of its latest answer fits any more, and is waited for where that is worth it.

    What takes a sequence belongs to whoever has it, the engine's thread during a job, else the event loop, to
    which the rest belongs. NOTE: between the two go only single assignments, which are atomic.
    """

    def __init__(self, send: Callable[[Question], None], worth: Worth, vocab_size: int) -> None:
        """Sends questions by `send`, from any thread; ids of answers lie below `vocab_size`."""
        self._send = send
        self._worth = worth
        self._vocab_size = vocab_size
        self._local = LocalProposer(worth)
        self._is_model = False
        self._question: Question | None = None
        self._missed: Question | None = None
        self._answer: tuple[Question, tuple[int, ...]] | None = None
        self._settled = asyncio.Event()
        self._base = 0
        self._is_away = False
        self._waits = False
        self._asked = self._told = self._late = self._rejected = self._weak = 0

    @property
    def is_worth_waiting(self) -> bool:
        return self._waits

    def take(self, sequence: EngineSequence, max_tokens: int) -> tuple[int, ...]:
        self._waits = False
        if max_tokens < 1:
            return ()
        max_tokens = min(max_tokens, LONGEST_GUESS)
        if self._is_model:
            return self._take_from_model(sequence, max_tokens)
        if self._question is None and not self._is_away:
            self._told += 1
            self._ask(sequence, max_tokens)
        return self._local.propose(sequence, max_tokens)

    def tell(self, sequence: EngineSequence, max_tokens: int) -> None:
        self._local.judge(sequence)
        pays = self._worth.pays if self._is_model else self._worth.proposals()
        if not pays:
            return
        if not self._is_model:
            self._local.follow(sequence)
        if not self._is_away and (self._question is None or self._settled.is_set()):
            self._told += 1
            self._ask(sequence, max_tokens if self._is_model else 0)

    async def wait(self) -> None:
        started, is_late = time.perf_counter(), False
        try:
            async with asyncio.timeout(self._worth.patience_s):
                await self._settled.wait()
        except TimeoutError:
            is_late = True
            self._late += 1
        self._worth.saw_wait(time.perf_counter() - started, is_late)

    def saw_draft(self, forwards: int, seconds: float, sub_drafter_tokens: int) -> ProposalCounts:
        self._worth.saw_forwards(forwards, seconds)
        self._worth.saw_use(sub_drafter_tokens, self._asked)
        if self._question is not self._missed and not self._settled.is_set():
            self._missed = self._question
            self._late += 1
        counts = ProposalCounts(self._asked + self._told, self._late, self._rejected, self._weak)
        self._asked = self._told = self._late = self._rejected = self._weak = 0
        return counts

    def answered(self, question: Question, draft: Draft) -> None:
        """The sub-drafter answers."""
        tokens = self._sound(draft.tokens[: question.max_tokens])
        if tokens != draft.tokens:
            self._rejected += 1
        if tokens and draft.confidence < _MIN_CONFIDENCE:
            self._weak += 1
            tokens = ()
        self._is_model = self._is_model or (bool(tokens) and draft.match_length == 0)
        self._add(draft.snippets)
        self._answer = question, tokens
        self._worth.saw_answer(time.perf_counter() - question.asked_at)
        if question is self._question:
            self._settled.set()

    def lost(self) -> None:
        """The sub-drafter is away; nothing is asked before it is `found`."""
        self._is_away = True
        if self._question is not None and not self._settled.is_set():
            self._late += 1
        self._question = None
        self._settled.set()

    def found(self) -> None:
        """A sub-drafter may be asked again."""
        self._is_away = False

    def _take_from_model(self, sequence: EngineSequence, max_tokens: int) -> tuple[int, ...]:
        """What of the latest answer fits; else asks again, where that pays."""
        if proposal := self._usable(sequence):
            return proposal[:max_tokens]
        if not self._is_away and not self._is_pending(sequence) and self._worth.asks():
            self._asked += 1
            self._ask(sequence, max_tokens)
            self._waits = self._worth.waits()
        return ()

    def _add(self, snippets: tuple[tuple[int, ...], ...]) -> None:
        """Takes snippets over, but for those that the model cannot read."""
        sound = [snippet for snippet in snippets if self._sound(snippet) == snippet]
        self._rejected += len(snippets) - len(sound)
        self._local.add(sound)

    def _sound(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """The tokens before the first that the model does not know."""
        unknown = (index for index, token in enumerate(tokens) if token >= self._vocab_size)
        return tokens[: next(unknown, len(tokens))]

    def _is_pending(self, sequence: EngineSequence) -> bool:
        """The latest question, about this sequence, has not been answered yet."""
        question = self._question
        return question is not None and not self._settled.is_set() and question.precedes(sequence.tokens)

    def _usable(self, sequence: EngineSequence) -> tuple[int, ...]:
        if self._answer is None:
            return ()
        question, tokens = self._answer
        if not question.precedes(sequence.tokens):
            return ()
        used = sequence.tokens.ids[question.length :]
        return tokens[len(used) :] if tuple(used) == tokens[: len(used)] else ()

    def _ask(self, sequence: EngineSequence, max_tokens: int) -> None:
        known, base = sequence.tokens, self._base
        question = Question(
            base=base,
            tail=tuple(known.ids[base:]),
            decided=sequence.decided,
            max_tokens=max_tokens,
            prefix_hash=known.prefix_hash(len(known)),
            asked_at=time.perf_counter(),
        )
        self._base = sequence.decided
        self._settled.clear()
        self._question = question
        self._send(question)
