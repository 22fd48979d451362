"""vLLM's runner over workers that only remember tokens: blocks, copies, long rows, and steps that fail."""

import pickle
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flyserve.core.errors import ModelError
from flyserve.core.messages import ModelInfo, Role
from flyserve.core.request import SamplingParams
from services.engine.base import ForwardInput, RunnerLost, Scores
from services.engine.head.head import Head
from services.engine.head.head_scorer import HeadScorer
from services.engine.loading.steps_check import check_steps
from services.engine.vllm.runner import VllmRunner
from services.engine.vllm.steps import Layout, Step
from services.engine.vllm.worker import StepWorker

BLOCK, VOCAB = 4, 97
Ids = list[int]


class TokenWorkers:
    """Workers whose KV memory holds token ids; a row's logits depend on all tokens before it."""

    is_inside = True

    def __init__(self, num_blocks: int) -> None:
        self.blocks = [[-1] * BLOCK for _ in range(num_blocks)]
        self.tables: dict[int, Sequence[int]] = {}
        self.most_rows = 0
        self.failures: list[Exception] = []

    def compute(self, step: Step) -> torch.Tensor | None:
        for slot in step.closed:
            self.tables.pop(slot, None)
        for target, content in [(target, [*self.blocks[source]]) for source, target in step.copies]:
            self.blocks[target] = content
        self.most_rows = max(self.most_rows, sum(len(row.tokens) for row in step.rows))
        rows = []
        for row in step.rows:
            table = self.tables[row.slot] = self.tables[row.slot] if row.table is None else row.table
            for position, token in enumerate(row.tokens, start=row.start):
                self.blocks[table[position // BLOCK]][position % BLOCK] = token
            if self.failures:
                raise self.failures.pop()
            tokens = [self.blocks[table[place // BLOCK]][place % BLOCK] for place in range(row.end)]
            rows += [logits_after(tokens[:end]) for end in range(row.end - row.num_outputs + 1, row.end + 1)]
        return torch.stack(rows) if rows else None

    def check(self) -> None: ...

    def close(self) -> None: ...


class RemoteWorkers(TokenWorkers):
    """Workers in other processes, with a head of their own."""

    is_inside = False
    num_scored = 0

    def score(self, step: Step, items: Sequence[ForwardInput]) -> list[Scores] | str:
        self.num_scored += 1
        worker: Any = StepWorker()
        worker.rank, worker._flyserve_forward, worker._flyserve_head = 1, self.compute, Head(VOCAB)
        arguments = pickle.loads(pickle.dumps((step, items, 1)))
        found: list[Scores] | str = pickle.loads(pickle.dumps(worker.flyserve_scores(*arguments)))
        return found


def logits_after(tokens: Ids) -> torch.Tensor:
    generator = torch.Generator().manual_seed(hash(tuple(tokens)) % 2**60)
    return torch.rand(VOCAB, generator=generator)


def runner_of(
    workers: Any, max_sequences: int = 4, num_blocks: int = 64, batch_tokens: int = 512
) -> VllmRunner:
    info = ModelInfo(Role.TARGET, "m", "", "", "", VOCAB, 200, "float32", 1, 0, "", max_sequences)
    return VllmRunner(info, workers, Layout(num_blocks, BLOCK), batch_tokens)


def item(slot: int, ids: Ids, start: int, outputs: int) -> ForwardInput:
    return ForwardInput(slot, start, ids[start:], outputs, SamplingParams(), 0, ids)


@pytest.mark.parametrize("max_sequences", [1, 2])
def test_the_check_at_start_passes_and_leaves_nothing(max_sequences: int) -> None:
    runner = runner_of(TokenWorkers(64), max_sequences)
    first, again = check_steps(runner), check_steps(runner)
    assert first == again and first.is_invariant
    assert (runner.kv_used, runner.kv_cached) == (0, 0)


def test_the_check_at_start_reports_rows_that_depend_on_their_batch() -> None:
    class Rounding(TokenWorkers):
        def compute(self, step: Step) -> torch.Tensor | None:
            found = super().compute(step)
            return found if found is None else found * (1 + 1e-6 * len(found))

    exact, rounded = check_steps(runner_of(TokenWorkers(64))), check_steps(runner_of(Rounding(64)))
    assert not rounded.is_invariant and rounded.kernels != exact.kernels


@pytest.mark.parametrize("fault", ["copies", "start", "table"])
def test_the_check_at_start_finds_a_step_with_another_meaning(fault: str) -> None:
    class Changed(TokenWorkers):
        def compute(self, step: Step) -> torch.Tensor | None:
            if fault == "copies":
                return super().compute(step._replace(copies=()))
            if fault == "start":  # a roll-back is ignored
                return super().compute(
                    step._replace(rows=[row._replace(start=self.later(row)) for row in step.rows])
                )
            kept = [row._replace(table=self.tables.get(row.slot, row.table)) for row in step.rows]
            return super().compute(step._replace(rows=kept))

        def later(self, row: Any) -> int:
            ends[row.slot] = row.start if row.start == 0 else max(row.start, ends.get(row.slot, 0))
            start, ends[row.slot] = ends[row.slot], ends[row.slot] + len(row.tokens)
            return min(start, row.start + 1)

    ends: dict[int, int] = {}
    with pytest.raises(ModelError, match=r"its rows computed step by step differ|cannot be computed step by"):
        check_steps(runner_of(Changed(64)))


ACTIONS = st.tuples(
    st.sampled_from(["extend", "extend", "extend", "share", "close", "retire", "preempt", "fail"]),
    st.integers(0, 7),
    st.integers(0, 11),
    st.integers(1, 9),
)


@given(actions=st.lists(ACTIONS, max_size=40), batch_tokens=st.sampled_from([3, 512]))
@settings(max_examples=60, deadline=None)
def test_every_row_sees_its_own_tokens_whatever_happened_before(
    actions: list[tuple[str, int, int, int]], batch_tokens: int
) -> None:
    workers = TokenWorkers(24)
    runner = runner_of(workers, num_blocks=24, batch_tokens=batch_tokens)
    open_ids: dict[int, Ids] = {}
    cached: dict[int, Ids] = {}
    for number, (name, which, back, count) in enumerate(actions):
        slots = sorted(open_ids)
        slot = slots[which % len(slots)] if slots else None
        if name == "share" or slot is None:
            sources = {**open_ids, **cached}
            if (new := runner.allocate(0)) is None:
                continue
            open_ids[new] = []
            if sources:
                source = sorted(sources)[which % len(sources)]
                ids = sources[source][: max(0, len(sources[source]) - back)]
                if ids and runner.copy_prefix(source, new, len(ids)):
                    open_ids[new] = ids
        elif name == "close":
            runner.free(slot)
            del open_ids[slot]
        elif name == "retire":
            cached[slot] = open_ids.pop(slot)
            runner.retire(slot, len(cached[slot]))
        elif name == "preempt":
            runner.resize(slot, 0)
            open_ids[slot] = []
        else:
            ids = open_ids[slot]
            start = max(0, len(ids) - back)
            ids = ids[:start] + [(31 * number + 7 * place) % VOCAB for place in range(count)]
            if not runner.resize(slot, len(ids), start):
                continue
            work = [item(slot, ids, start, min(count, 1 + back))]
            if name == "fail":
                workers.failures = [ValueError("out of memory")]
                with pytest.raises(ValueError, match="out of memory"):
                    runner.logits(work)
            open_ids[slot] = ids
            outputs = work[0].num_outputs
            expected = [logits_after(ids[:end]) for end in range(len(ids) - outputs + 1, len(ids) + 1)]
            assert torch.equal(runner.logits(work), torch.stack(expected))
    assert workers.most_rows <= batch_tokens


def test_a_batch_without_outputs_has_no_logits() -> None:
    runner = runner_of(TokenWorkers(8), num_blocks=8)
    slot = runner.allocate(8)
    assert slot is not None
    assert runner.logits([item(slot, [1, 2, 3], 0, 0)]).shape == (0, VOCAB)


def test_a_lost_worker_is_reported_as_it_is() -> None:
    workers = TokenWorkers(8)
    runner = runner_of(workers, num_blocks=8)
    slot = runner.allocate(8)
    assert slot is not None
    workers.failures = [RunnerLost("a process of vLLM has ended")]
    with pytest.raises(RunnerLost, match="has ended"):
        runner.logits([item(slot, [1, 2, 3], 0, 1)])


@pytest.mark.parametrize(
    ("sampling", "batch_tokens", "is_remote"),
    [
        (SamplingParams(), 512, True),
        (SamplingParams(temperature=0.8, top_p=0.9, seed=3), 512, True),
        (SamplingParams(presence_penalty=0.5), 512, False),
        (SamplingParams(), 16, False),
    ],
)
def test_logits_of_other_processes_are_scored_there_if_nothing_changes_them(
    sampling: SamplingParams, batch_tokens: int, is_remote: bool
) -> None:
    ids, found = [*range(50)], []
    workers = TokenWorkers(32), RemoteWorkers(32)
    for each in workers:
        scorer = HeadScorer(runner_of(each, num_blocks=32, batch_tokens=batch_tokens))
        slots = [scorer.allocate(60) for _ in range(2)]
        assert None not in slots
        drafts = (*ids[46:], -1)
        verified = ForwardInput(slots[0], 0, ids, 5, sampling, 9, ids, drafts, num_logprobs=2, with_gaps=True)
        found.append(scorer.forward([verified, ForwardInput(slots[1], 0, ids[:9], 0, sampling, 9, ids)]))
    assert found[0] == found[1] and len(found[0][0].choices) == 5
    assert bool(workers[1].num_scored) == is_remote


@pytest.mark.parametrize("error", [FloatingPointError("a sum is NaN"), RuntimeError("STATUS_INTERNAL_ERROR")])
def test_a_head_that_fails_beside_the_logits_ends_the_runner_only_with_its_device(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer, ids = HeadScorer(runner_of(RemoteWorkers(32), num_blocks=32)), [*range(9)]
    slot = scorer.allocate(20)
    assert slot is not None

    def fail(*_: object) -> list[Scores]:
        raise error

    with monkeypatch.context() as patch, pytest.raises(RuntimeError) as caught:
        patch.setattr(Head, "__call__", fail)
        scorer.forward([item(slot, ids, 0, 1)])
    is_lost = isinstance(error, RuntimeError)
    assert isinstance(caught.value, RunnerLost) is is_lost
    if not is_lost:
        assert str(caught.value) == "the head failed in a process of vLLM: FloatingPointError: a sum is NaN"
        (scores,) = scorer.forward([item(slot, [*ids, 9], 9, 1)])
        assert scores.choices == (int(logits_after([*ids, 9]).argmax()),)
