"""A model sharded over two processes: equal scores, kept alive while idle, ended together."""

import asyncio
import multiprocessing
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from flyserve.core.errors import ModelError, NotReady
from flyserve.core.request import SamplingParams
from services.engine.base import ForwardInput, Job, RunnerLost, Scores
from services.engine.config import Sharding
from services.engine.forward.self_check import input_of
from services.engine.forward.torch_runner import load_runner
from services.engine.head.head import Head
from services.engine.head.head_scorer import HeadScorer
from services.engine.sharding.follower import spawn_followers
from services.engine.sharding.group import ShardGroup
from services.engine.sharding.leader import LeaderRunner, lead
from services.engine.thread_engine import ThreadEngine
from services.target.config import TargetConfig
from tests.support.tiny_models import make_tiny
from tests.support.touchy_engine import decode, opened

FolderMaker = Callable[[str], Path]
SHARDING = Sharding(shards=2)
"""The default timeouts: a busy machine may delay a rank by many seconds."""
END_S = 240
"""Limit of a wait that a correct engine ends."""


def config_of(folder: Path, sharding: Sharding | None = None) -> TargetConfig:
    shared = {} if sharding is None else sharding.model_dump()
    return TargetConfig(model=folder, dtype="float32", max_sequences=4, kv_tokens=1024, **shared)


def leader_of(folder: Path, sharding: Sharding = SHARDING) -> LeaderRunner:
    config = config_of(folder, sharding)
    return lead(config, spawn_followers(config))


@pytest.fixture(autouse=True)
def _leaves_no_follower() -> Iterator[None]:
    yield
    for process in multiprocessing.active_children():
        process.join(END_S)
        assert process.exitcode is not None


def follower() -> Any:
    (process,) = multiprocessing.active_children()
    return process


class Session:
    """Sequences that grow and roll back at random, equal for equal seeds."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._known: list[list[int]] = [[], [], []]

    def batch(self) -> list[ForwardInput]:
        """Make a turn of one to three sequences, some of them only prefilled."""
        chosen = self._draw.sample(range(3), self._draw.randint(1, 3))
        return [self._input(slot) for slot in chosen]

    def _input(self, slot: int) -> ForwardInput:
        known, draw = self._known[slot], self._draw
        keep = draw.randint(max(0, len(known) - 6), len(known))
        known[keep:] = [draw.randrange(96) for _ in range(draw.randint(1, 5))]
        num_outputs = draw.choice([0, 1, len(known) - keep])
        return ForwardInput(
            slot, keep, known[keep:], num_outputs, SamplingParams(), 0, known, num_logprobs=20
        )


def distance(one: Scores, other: Scores) -> float:
    """Return the largest difference of the top 20 log-probabilities and of the entropies."""
    pairs = list(zip(one.entropies, other.entropies, strict=True))
    for left, right in zip(one.logprobs, other.logprobs, strict=True):
        assert [token for token, _ in left.top] == [token for token, _ in right.top]
        pairs += zip((p for _, p in left.top), (p for _, p in right.top), strict=True)
    return max((abs(left - right) for left, right in pairs), default=0.0)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])  # tied and untied, without and with bias
def test_a_sharded_model_gives_the_scores_of_the_whole_one(model_folder: FolderMaker, kind: str) -> None:
    folder = model_folder(kind)
    leader = leader_of(folder)
    whole, shared = HeadScorer(load_runner(config_of(folder))), HeadScorer(leader)
    assert (whole.info.shards, shared.info.shards) == (1, 2)
    for runner in (whole, shared):
        assert [runner.allocate(60) for _ in range(3)] == [0, 1, 2]
    session = Session(0)
    for _ in range(15):
        batch = session.batch()
        for expected, found in zip(whole.forward(batch), shared.forward(batch), strict=True):
            assert found.choices == expected.choices
            assert distance(expected, found) < 1e-5
    leader.close()
    follower().join(END_S)


def test_a_row_of_three_shards_has_the_same_bits_in_any_batch(tmp_path: Path) -> None:
    model = make_tiny("mixtral", hidden_size=48, num_attention_heads=6, num_key_value_heads=3)
    model.save_pretrained(tmp_path)
    leader = leader_of(tmp_path, Sharding(shards=3))
    ids = [random.Random(0).randrange(96) for _ in range(40)]
    slots = [leader.allocate(40), leader.allocate(40)]
    whole = leader.logits([input_of(slots[0], ids, 0)])
    alone = [leader.logits([input_of(slots[1], ids[: end + 1], end)]) for end in range(40)]
    leader.close()
    assert torch.equal(torch.cat(alone), whole)
    assert leader.info.row_invariant


@pytest.mark.parametrize("group_timeout_s", [0.5, 3.0, 60.0])
def test_an_idle_leader_sends_several_heartbeats_in_the_time_of_the_group(group_timeout_s: float) -> None:
    assert 4 * Sharding(shards=2, group_timeout_s=group_timeout_s).heartbeat_s <= group_timeout_s


async def test_an_idle_group_stays_alive_and_a_broken_one_ends(model_folder: FolderMaker) -> None:
    leader = leader_of(model_folder("llama"))
    engine = ThreadEngine(HeadScorer(leader), keepalive=leader)
    await engine.start()
    first = await engine.run(decode(await opened(engine, [5, 6, 7]), 4))
    with patch.object(leader, "on_idle", wraps=leader.on_idle) as heartbeat:
        async with asyncio.timeout(END_S):
            while heartbeat.call_count < 2:
                await asyncio.sleep(0.05)
    sequence = await opened(engine, [5, 6, 7])
    assert await engine.run(decode(sequence, 4)) == first

    follower().kill()
    async with asyncio.timeout(END_S):
        await engine.failure()
    with pytest.raises(NotReady):
        await engine.run(decode(sequence, 1))
    await engine.stop()


async def test_a_follower_lost_between_two_forwards_ends_the_engine(model_folder: FolderMaker) -> None:
    leader = leader_of(model_folder("llama"))
    engine = ThreadEngine(HeadScorer(leader), keepalive=leader)
    await engine.start()
    sequence = await opened(engine, [5, 6, 7])

    def kill_between_forwards() -> Job[None]:
        yield from decode(sequence, 1)
        follower().kill()
        yield from decode(sequence, 1)

    with pytest.raises(NotReady):
        await engine.run(kill_between_forwards())
    async with asyncio.timeout(END_S):
        await engine.failure()
    await engine.stop()


def one_input(slot: int = 0) -> list[ForwardInput]:
    tokens = [5, 6, 7]
    return [ForwardInput(slot, 0, tokens, 1, SamplingParams(), 0, tokens)]


def test_a_forward_that_fails_on_all_ranks_alike_ends_no_group(model_folder: FolderMaker) -> None:
    leader = leader_of(model_folder("llama"))
    assert leader.allocate(60) == 0
    expected = leader.logits(one_input()).tolist()
    for _ in range(2):
        with pytest.raises(KeyError):
            leader.logits(one_input(slot=3))  # no rank has this slot
        assert leader.logits(one_input()).tolist() == expected
    leader.close()
    follower().join(END_S)


@pytest.mark.parametrize("part", ["head", "logits"])
def test_a_failure_of_the_leader_alone(
    model_folder: FolderMaker, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """The head is the leader's own; in the model, the follower waits for a leader that has left."""
    # A follower that the leader has left ends after this time, and so does a leader that waits for it.
    leader = leader_of(model_folder("llama"), Sharding(shards=2, group_timeout_s=10.0))
    assert leader.allocate(60) == 0
    scorer = HeadScorer(leader)
    with monkeypatch.context() as patch:
        owner, name = (Head, "__call__") if part == "head" else (leader._runner, "logits")
        patch.setattr(owner, name, lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError if part == "head" else RunnerLost):
            scorer.forward(one_input())
    if part == "head":
        assert scorer.forward(one_input())[0].choices
    leader.close()
    follower().join(END_S)


@pytest.mark.parametrize(
    ("kind", "shards", "fault"),
    [
        ("llama", 4, "shards is 4: must divide the 2 KV heads of llama"),
        ("llama", 3, "the 4 attention heads and the 2 KV heads of llama"),
        ("llama_odd", 5, "the 4 KV heads and the 48 MLP width of llama"),
        ("gpt2", 2, "shards is 2: gpt2 has no tensor parallel plan"),
    ],
)
def test_a_model_that_cannot_be_split_is_rejected_before_anything_starts(
    model_folder: FolderMaker, kind: str, shards: int, fault: str
) -> None:
    with pytest.raises(ModelError, match=fault):
        leader_of(model_folder(kind), Sharding(shards=shards))
    assert multiprocessing.active_children() == []


def test_a_group_listens_on_loopback_only_and_reports_followers_that_do_not_join(
    model_folder: FolderMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library in ("GLOO", "NCCL"):
        monkeypatch.setenv(f"{library}_SOCKET_IFNAME", "eth0")
    config = config_of(model_folder("llama"), Sharding(shards=2, group_start_timeout_s=0.1))
    with pytest.raises(ModelError, match=r"shards: 2 ranks have not joined within 0\.1 s"):
        lead(config, lambda port: None)
    assert os.environ["NCCL_SOCKET_IFNAME"] == os.environ["GLOO_SOCKET_IFNAME"] == "lo"


def follow_with(number: int, sharding: Sharding, port: int) -> None:
    group = ShardGroup.join(sharding, 1, port)
    with group.left_on_error():
        assert group.smallest(number) == number
    group.leave()


def test_all_ranks_get_the_smallest_number_of_any() -> None:
    """The KV positions that fit differ by GPU; plans are valid for every rank only if all have as many."""

    def start(port: int) -> None:
        arguments = (48, SHARDING, port)
        multiprocessing.get_context("spawn").Process(target=follow_with, args=arguments, daemon=True).start()

    group = ShardGroup.lead(SHARDING, start)
    process = follower()
    with group.left_on_error():
        assert group.smallest(64) == 48
    group.leave()
    process.join(END_S)
    assert process.exitcode == 0
