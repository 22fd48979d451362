"""Random sequences of operations on little memory, checked against a model of the expected state."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flyserve.core.errors import InternalError, NotReady, Overloaded
from flyserve.core.messages import Open
from flyserve.core.request import SamplingParams
from flyserve.core.sequence import SequenceUpdate, TokenSequence
from services.engine.base import ForwardInput
from services.engine.core import EngineCore
from services.engine.forward.padding import Padding
from services.engine.future import EngineFuture
from services.engine.memory.kv_cache import ContiguousKvCache, KvCache
from services.engine.memory.paged_kv_cache import PagedKvCache
from services.engine.scheduling.scheduler import ScheduledJob, forward_inputs
from services.engine.sequence import EngineSequence
from services.engine.simulation.runner import SimulatedConfig
from tests.support.clock import VirtualClock
from tests.support.remembering import RememberingRunner

CONTEXT = 160
CONFIG = SimulatedConfig(vocab_size=64, context_length=CONTEXT)
PADDING = Padding(rows=4, lengths=(96, 512))
KV_CACHES = [ContiguousKvCache, partial(ContiguousKvCache, padding=PADDING), PagedKvCache]
SEQUENCES_PER_SESSION = 100
MAX_QUEUED = 3


class ForwardFailed(Exception):
    """The error of a forward that was made to fail."""


@dataclass(eq=False)
class Peer:
    """A sequence as its client sees it."""

    opening: Open
    future: EngineFuture
    plan: list[int]
    sequence: EngineSequence | None = None
    known: list[int] = field(default_factory=list)
    decided: int = 0
    job: EngineFuture | None = None
    num_outputs: int = 0


class Session:
    """Drives an engine's core with random operations and checks it after each of them."""

    def __init__(self, draw: Random, kv_cache: KvCache, max_batch_tokens: int) -> None:
        self.draw = draw
        self.runner = RememberingRunner(CONFIG, kv_cache)
        self.core = EngineCore(self.runner, max_batch_tokens, MAX_QUEUED, VirtualClock())
        self.peers: list[Peer] = []
        self.num_opened = 0
        self.salts: dict[int, str] = {}
        self.most_decided: dict[int, int] = {}
        self.roots = [[draw.randrange(64) for _ in range(CONTEXT)] for _ in range(2)]

    def run(self) -> None:
        moves = [self.open, self.step, self.turn, self.close, self.cancel]
        weights = [2, 8, 8, 2, 0.2]
        while self.num_opened < SEQUENCES_PER_SESSION:
            self.draw.choices(moves, weights)[0]()
            self.settle()
            self.check_copies()
            self.check()
        self.finish()
        self.core.abort()
        assert self.runner.kv_used == 0 and self.runner.kv_cached == 0
        assert len(self.core._kv) == 0 and len(self.core._kv._index) == 0

    def finish(self) -> None:
        """Close sequences one by one; all jobs and opens must end."""
        for _ in range(10_000):
            if not self.peers:
                return
            self.turn()
            self.settle()
            self.check()
            done = [peer for peer in self.peers if peer.sequence is not None and peer.job is None]
            if done and not self.core.has_work:
                self.core.cancel(done[0].future)
                self.peers.remove(done[0])
        raise AssertionError("some sequence waits for ever")

    def open(self) -> None:
        root = self.draw.choice(self.roots)
        shared = self.draw.randrange(CONTEXT)
        plan = root[:shared] + [self.draw.randrange(64) for _ in range(CONTEXT - shared)]
        prompt_length = self.draw.randint(1, min(CONTEXT, self.core.context_length))
        opening = Open(
            request_id="r",
            prompt_length=prompt_length,
            sampling=SamplingParams(ignore_eos=True),
            priority=self.draw.choice([0, 0, 1]),
            cache_salt=self.draw.choice("aab"),
            max_new_tokens=self.draw.choice([0, 1, CONTEXT - prompt_length]),
        )
        peer = Peer(opening, EngineFuture(), plan)
        self.num_opened += 1
        self.peers.append(peer)
        self.core.open(opening, peer.future)

    def step(self) -> None:
        """Roll back, append and decide; or replay the whole sequence."""
        ready = [peer for peer in self.peers if peer.sequence is not None and peer.job is None]
        if not ready:
            return
        peer = self.draw.choice(ready)
        sequence = peer.sequence
        assert sequence is not None
        keep = self.draw.randint(peer.decided, len(peer.known)) if self.draw.random() < 0.8 else 0
        limit = min(CONTEXT, self.core.context_length)
        length = self.draw.randint(max(keep, 1), min(limit, keep + self.draw.choice([12, CONTEXT])))
        tokens = self._tokens(peer, keep, length)
        decided = max(peer.decided if keep else 0, length - self.draw.choice([0, 0, 1, 5, CONTEXT]))
        update = SequenceUpdate(1, keep, tuple(tokens), decided, TokenSequence(peer.known).prefix_hash(keep))
        peer.known = [*peer.known[:keep], *tokens]
        peer.decided = decided
        sequence.apply(update)
        assert sequence.tokens.ids == peer.known
        self.most_decided[sequence.slot] = max(decided, self.most_decided[sequence.slot])
        peer.num_outputs = self.draw.randint(1, min(5, length))
        peer.job = EngineFuture()
        self.core.submit(sequence.score(peer.num_outputs), self.draw.randrange(2), 0, peer.job)

    def _tokens(self, peer: Peer, keep: int, length: int) -> list[int]:
        """Return mostly planned tokens, which other sequences have too; the rest are drafts."""
        return [
            token if self.draw.random() < 0.97 else self.draw.randrange(64)
            for token in peer.plan[keep:length]
        ]

    def turn(self) -> None:
        batch = self.core.next_batch()
        if not batch:
            return
        self.settle()
        self.check_waiting()
        culprit = self.draw.choice(batch) if self.draw.random() < 0.05 else None
        parts: list[Sequence[ScheduledJob]] = [batch]
        while parts:
            part = parts.pop()
            scores = self.runner.forward(forward_inputs(part))
            if culprit in part:
                parts += self.core.fail(part, ForwardFailed())
            else:
                self.core.complete(part, scores, 0, 1)

    def close(self) -> None:
        if self.peers:
            peer = self.peers.pop(self.draw.randrange(len(self.peers)))
            self.core.cancel(peer.future)
            self.settle()
            self.check_waiting()

    def cancel(self) -> None:
        working = [peer for peer in self.peers if peer.job is not None]
        if working:
            peer = self.draw.choice(working)
            assert peer.job is not None
            self.core.cancel(peer.job)
            peer.job = None

    def settle(self) -> None:
        """Process the results of the engine."""
        answered = {deliver for _, deliver in self.core.take_deliveries()}
        for peer in list(self.peers):
            if peer.future.deliver in answered:
                self._opened(peer)
            if peer.job is not None and peer.job.deliver in answered:
                self._scored(peer)

    def _opened(self, peer: Peer) -> None:
        if peer.future.error is not None:
            assert isinstance(peer.future.error, Overloaded)
            self.peers.remove(peer)
        else:
            sequence = peer.sequence = peer.future.result
            self.salts[sequence.slot], self.most_decided[sequence.slot] = peer.opening.cache_salt, 0

    def _scored(self, peer: Peer) -> None:
        job, peer.job = peer.job, None
        assert job is not None
        if job.error is not None:
            assert isinstance(job.error, InternalError | NotReady), job.error
            return
        scores, _ = job.result
        ids, outputs = peer.known, peer.num_outputs
        drafts = [*ids[len(ids) - outputs + 1 :], -1]
        opening = peer.opening
        item = ForwardInput(0, 0, ids, outputs, opening.sampling, opening.prompt_length, ids, drafts)
        assert scores == self.runner.answer(item)

    def check_copies(self) -> None:
        """Check that only decided tokens are shared, and only within a salt; what was shared may be again."""
        for source, slot, num_tokens in self.runner.copies:
            assert self.salts[source] == self.salts[slot]
            assert num_tokens <= self.most_decided[source]
            self.most_decided[slot] = max(self.most_decided[slot], num_tokens)
        self.runner.copies.clear()

    def check(self) -> None:
        opened = [peer.sequence for peer in self.peers if peer.sequence is not None]
        waiting = [peer for peer in self.peers if peer.sequence is None]
        preempted = [
            peer
            for peer in self.peers
            if peer.sequence is not None and peer.job is not None and not self.has_memory(peer.sequence)
        ]
        load = self.core.load()
        assert load.sequences == len(opened) - len(preempted)
        assert load.queued == len(waiting) + len(preempted)
        assert len(opened) <= self.runner.max_sequences and len(waiting) <= MAX_QUEUED
        ours = {sequence.slot for sequence in opened}
        assert len(ours) == len(opened)
        cached = set(self.core._kv._cached)
        assert not ours & cached
        assert load.kv_used == self.runner.held(ours)
        assert load.kv_used + load.kv_cached == self.runner.held(ours | cached) == self.runner.kv_used
        assert self.runner.kv_used <= self.runner.kv_capacity
        for sequence in opened:
            assert sequence.num_computed <= self.runner.held([sequence.slot])

    def has_memory(self, sequence: EngineSequence) -> bool:
        return self.runner.held([sequence.slot]) > 0

    def check_waiting(self) -> None:
        """Check that sequences wait only for others that have memory, or for a place."""
        load = self.core.load()
        opened = [peer.sequence for peer in self.peers if peer.sequence is not None]
        has_place = len(opened) < self.runner.max_sequences
        if load.queued and (has_place or self.core._admission.num_preempted):
            assert any(map(self.has_memory, opened))


@pytest.mark.parametrize("kv_cache", KV_CACHES)
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(64, 1200), st.integers(2, 128))
@example(30, 3, 544, 12)
@settings(max_examples=5, deadline=None)
def test_no_sequence_leaks_memory_or_reads_that_of_another(
    kv_cache: Callable[..., KvCache], seed: int, places: int, kv_tokens: int, batch_tokens: int
) -> None:
    async def session() -> None:
        Session(Random(seed), kv_cache(kv_tokens, places), batch_tokens).run()

    asyncio.run(session())
