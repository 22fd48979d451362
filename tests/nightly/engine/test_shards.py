"""A model over four processes: sums in the order of the ranks, and a row with the same bits in any batch."""

import multiprocessing
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial
from transformers.distributed.parallel_utils import ALL_PARALLEL_STYLES

from services.engine.config import Sharding
from services.engine.forward.self_check import input_of
from services.engine.loading import ordered_sum
from services.engine.sharding.follower import spawn_followers
from services.engine.sharding.leader import LeaderRunner, lead
from services.target.config import TargetConfig
from tests.support.tiny_models import make_tiny

RANKS = 4
END_S = 240
SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "intermediate_size": 128,
}
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(autouse=True)
def _leaves_no_process() -> Iterator[None]:
    yield
    for process in multiprocessing.active_children():
        process.join(END_S)
        assert process.exitcode == 0


def config_of(folder: Path, dtype: str = "bfloat16") -> TargetConfig:
    sharding = Sharding(shards=RANKS).model_dump()
    return TargetConfig(model=folder, dtype=dtype, max_sequences=4, kv_tokens=4096, **sharding)


def logits_in_parts(leader: LeaderRunner, ids: list[int], ends: list[int], num_beside: int) -> Tensor:
    """Return the logits of a sequence, computed up to each end in turn, beside rows of another one."""
    slots, parts, start = [leader.allocate(len(ids)) for _ in range(2)], [], 0
    own, other = (slot for slot in slots if slot is not None)
    for end in ends:
        beside = [input_of(other, ids[:num_beside], 0)] if num_beside else []
        parts.append(leader.logits([*beside, input_of(own, ids[:end], start)])[num_beside:].clone())
        start = end
    leader.free(own)
    leader.free(other)
    return torch.cat(parts)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("llama", "bfloat16"),
        ("llama", "float32"),
        ("qwen2", "bfloat16"),
        ("gemma2", "float32"),
        ("mixtral", "bfloat16"),
        ("mixtral", "float32"),
    ],
)
def test_a_row_has_the_same_bits_alone_and_in_batches(tmp_path: Path, kind: str, dtype: str) -> None:
    make_tiny(kind, **SIZES).save_pretrained(tmp_path)
    config, draw = config_of(tmp_path, dtype), random.Random(0)
    leader = lead(config, spawn_followers(config))
    ids = [draw.randrange(96) for _ in range(60)]
    whole = logits_in_parts(leader, ids, [60], 0)
    assert torch.equal(logits_in_parts(leader, ids, [*range(1, 61)], 0), whole), "alone"
    for _ in range(6):
        ends = [*sorted(draw.sample(range(1, 60), 5)), 60]
        assert torch.equal(logits_in_parts(leader, ids, ends, draw.randrange(60)), whole), ends
    leader.close()
    assert leader.info.row_invariant


def start(run: Any, first: object, last: object) -> None:
    """Start all ranks but the first one."""
    for rank in range(1, RANKS):
        SPAWN.Process(target=run, args=(first, last, rank), daemon=True).start()


@pytest.mark.parametrize("style", ["rowwise", "all_reduce", "moe_tp_experts"])
def test_a_style_adds_the_parts_in_the_order_of_the_ranks(tmp_path: Path, style: str) -> None:
    start(run_rank, style, tmp_path / "store")
    run_rank(style, tmp_path / "store", 0)


def run_rank(style: str, store: Path, rank: int) -> None:
    """Compute the sums of one rank, and compare them with those of all parts."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    shared = dist.FileStore(str(store), RANKS)
    dist.init_process_group("gloo", store=shared, rank=rank, world_size=RANKS)
    try:
        ordered_sum.use_ordered_sums()
        mesh, layer = init_device_mesh("cpu", (RANKS,)), ALL_PARALLEL_STYLES[style]
        for dtype in (torch.bfloat16, torch.float32):
            for count in (1, 2, 7, 16, 64):
                first, *others = (part_of(each, count, dtype) for each in range(RANKS))
                expected = sum(others, start=first)
                own = part_of(rank, count, dtype)
                wrapped = DTensor.from_local(own.clone(), mesh, [Partial()], run_check=False)
                for output in (own.clone(), wrapped):
                    found = layer.transform_output_post_forward(nn.Identity(), output, mesh)
                    assert torch.equal(found, expected), (style, rank, dtype, count)
    finally:
        dist.destroy_process_group()


def part_of(rank: int, count: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(64, 48, generator=torch.Generator().manual_seed(rank))[:count].to(dtype)
