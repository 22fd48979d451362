"""Shared blocks: stored once, copied on write, and a model computes the same with them."""

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flyserve.core.errors import ConfigError, ModelError
from flyserve.core.messages import Role
from flyserve.core.request import SamplingParams
from services.engine.base import ForwardInput
from services.engine.config import ModelConfig
from services.engine.forward.choice import choose_forward
from services.engine.forward.forward_batch import ForwardBatch
from services.engine.forward.fused import FusedForward
from services.engine.forward.linears import PlainLinear
from services.engine.forward.ragged import RaggedForward
from services.engine.forward.self_check import Forward
from services.engine.forward.torch_runner import TorchRunner, load_runner, make_kv_cache
from services.engine.loading.model import load_model
from services.engine.memory.gpu_memory import create_kv_memory
from services.engine.memory.kv_cache import ContiguousKvCache
from services.engine.memory.paged_kv_cache import PagedKvCache
from tests.support.kv_memory import store

BLOCK = 16


def write(kv_cache: Any, slot: int, start: int, numbers: list[int]) -> list[float]:
    """Return the contents of the slot after a write at `start`."""
    assert kv_cache.resize(slot, start + len(numbers), start)
    keys, values = store(kv_cache, 0, slot, start, numbers, 0.5)
    assert torch.equal(keys + 0.5, values)
    held: list[float] = keys.tolist()
    return held


def test_a_write_into_shared_blocks_without_free_blocks_changes_nothing() -> None:
    kv_cache = PagedKvCache(32, 2)
    first, second = kv_cache.allocate(32), kv_cache.allocate(0)
    write(kv_cache, first, 0, list(range(32)))
    assert kv_cache.copy_prefix(first, second, 32)
    assert not kv_cache.resize(second, 32, 20)
    assert kv_cache.resize(second, 32) and kv_cache.resize(first, 0)
    assert write(kv_cache, second, 20, [7]) == [*range(20), 7]


def test_the_capacity_is_in_whole_blocks_and_at_least_one() -> None:
    assert PagedKvCache(47, 1).kv_capacity == 32
    with pytest.raises(ConfigError, match="kv_tokens is 15, must be at least 16"):
        PagedKvCache(15, 1)


def test_the_memory_is_freed_with_the_cache() -> None:
    kv_cache = PagedKvCache(32, 1)
    memory = weakref.ref(kv_cache.layer(0, torch.empty(0, 2, 1, 1)))
    gc.disable()  # a load of a model does so, too
    del kv_cache
    gc.enable()
    assert memory() is None


ACTION = st.tuples(st.sampled_from(["open", "write", "share", "evict", "retire", "free"]), st.integers(0, 99))


@given(st.lists(ACTION, max_size=60), st.integers(0, 2**32))
@settings(deadline=None)
def test_every_slot_contains_its_own_writes(actions: list[tuple[str, int]], seed: int) -> None:
    kv_cache, draw = PagedKvCache(320, 4), Random(seed)
    held: dict[int, list[int]] = {}
    retired: set[int] = set()
    for action, number in actions:
        opened = [slot for slot in held if slot not in retired]
        slot = opened[number % len(opened)] if opened else None
        if action == "open" and (new := kv_cache.allocate(number)) is not None:
            assert new not in held
            held[new] = []
        elif action == "free" and held:
            gone = list(held)[number % len(held)]
            kv_cache.free(gone)
            retired.discard(gone)
            del held[gone]
        elif slot is None:
            continue
        elif action == "write":
            start = draw.randint(0, len(held[slot]))
            new = [draw.randrange(1000) for _ in range(1 + number % 40)]
            if kv_cache.resize(slot, start + len(new), start):
                held[slot] = held[slot][:start] + new
                assert write(kv_cache, slot, start, new) == held[slot]
        elif action == "share":
            source = draw.choice(list(held))
            length = draw.randint(0, len(held[source]))
            if source != slot and kv_cache.copy_prefix(source, slot, length):
                held[slot] = held[source][:length]
        elif action == "evict":
            assert kv_cache.resize(slot, 0)
            held[slot] = []
        elif action == "retire":
            length = draw.randint(0, len(held[slot]))
            kv_cache.retire(slot, length)
            held[slot] = held[slot][:length]
            retired.add(slot)
        check(kv_cache, held, retired)
    for slot in list(held):
        kv_cache.free(slot)
    assert kv_cache.kv_used == kv_cache.kv_cached == 0


def check(kv_cache: PagedKvCache, held: dict[int, list[int]], retired: set[int]) -> None:
    tables = {slot: kv_cache.table(slot) for slot in held}
    used = set().union(*tables.values())
    opened = set().union(*(table for slot, table in tables.items() if slot not in retired))
    assert kv_cache.kv_used == BLOCK * len(used) <= kv_cache.kv_capacity
    assert kv_cache.kv_cached == BLOCK * len(used - opened)
    for slot, numbers in held.items():
        if kv_cache._layers:
            positions = kv_cache.positions(slot, torch.device("cpu"))[: len(numbers)]
            assert kv_cache._layers[0][positions, 0].flatten().tolist() == numbers


@pytest.mark.parametrize("kind", ["llama", "llama_odd", "qwen3", "gemma2", "gpt_oss"])
def test_what_others_left_in_a_block_is_not_read(model_folder: Callable[[str], Path], kind: str) -> None:
    model: Any = load_model(model_folder(kind), "float32").model
    kv_cache = PagedKvCache(160, 4)
    is_fused = kind.startswith("llama")
    forward = FusedForward(model, kv_cache, PlainLinear) if is_fused else RaggedForward(model, kv_cache)
    texts = torch.randint(96, (2, 20), generator=torch.Generator().manual_seed(0)).tolist()

    def logits() -> torch.Tensor:
        slots = [kv_cache.allocate(20), kv_cache.allocate(9)]
        assert slots[0] is not None and slots[1] is not None
        items = [
            ForwardInput(slots[0], 0, texts[0], 20, SamplingParams(), 0, texts[0]),
            ForwardInput(slots[1], 0, texts[1][:9], 9, SamplingParams(), 0, texts[1]),
        ]
        computed = forward(ForwardBatch(items))
        kv_cache.free(slots[0])
        kv_cache.free(slots[1])
        return computed

    with torch.inference_mode():
        expected = logits()
        for layer in range(model.config.num_hidden_layers):
            memory = kv_cache.layer(layer, torch.empty(0))
            memory.fill_(float("nan"))
        assert torch.equal(logits(), expected)


def test_the_device_selects_the_kv_cache() -> None:
    assert isinstance(make_kv_cache(64, 1, torch.float32, "cpu"), ContiguousKvCache)
    assert isinstance(make_kv_cache(64, 1, torch.bfloat16, "cuda"), PagedKvCache)
    assert isinstance(make_kv_cache(64, 1, torch.bfloat16, "cuda:1"), PagedKvCache)


class FakeGpu:
    def __init__(self, free_bytes: int) -> None:
        self.free_bytes = free_bytes
        self.has_emptied_cache = False

    def empty_cache(self) -> None:
        self.has_emptied_cache = True

    def mem_get_info(self) -> tuple[int, int]:
        assert self.has_emptied_cache
        return self.free_bytes, 2 * self.free_bytes


def checked_forward(folder: Path, kv_tokens: int = BLOCK) -> tuple[Forward, PagedKvCache]:
    """Return the forward of a tiny Llama over blocks, which has passed its check, and its cache."""
    kv_cache = PagedKvCache(kv_tokens, 4)
    forward, *_ = choose_forward(load_model(folder, "float32"), kv_cache, "cpu")
    return forward, kv_cache


@pytest.mark.parametrize("free_tokens", [511, 611])
def test_kv_memory_that_does_not_fit_beside_a_forward_is_refused_with_the_size_that_does(
    model_folder: Callable[[str], Path], free_tokens: int
) -> None:
    forward, kv_cache = checked_forward(model_folder("llama"), 512)
    size = kv_cache.bytes_per_token
    with pytest.raises(ModelError, match=r"kv_tokens is 512, which .* use at most (\d+)$") as caught:
        create_kv_memory(forward, FakeGpu(free_tokens * size), room_bytes=100 * size)
    proposed = int(str(caught.value).split()[-1])
    room = free_tokens - 100
    assert proposed % BLOCK == 0 and 0.8 * room < proposed <= 0.85 * room
    with pytest.raises(ModelError, match=r"kv_tokens is 512, which .*: use a smaller max_batch_tokens, more"):
        create_kv_memory(forward, FakeGpu(90 * size), room_bytes=100 * size)
    forward, smaller = checked_forward(model_folder("llama"), proposed)
    create_kv_memory(forward, FakeGpu(free_tokens * size), room_bytes=100 * size)
    assert smaller.num_bytes == (proposed + BLOCK) * size  # with the spare block


def test_kv_memory_that_another_process_took_meanwhile_is_reported(
    model_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: PagedKvCache) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(PagedKvCache, "create_memory", refuse)
    forward, kv_cache = checked_forward(model_folder("llama"), 512)
    with pytest.raises(ModelError, match=r"kv_tokens is 512, which the GPU rejected: .* or use fewer$"):
        create_kv_memory(forward, FakeGpu(1000 * kv_cache.bytes_per_token))


def test_measured_kv_memory_leaves_room_for_forwards(model_folder: Callable[[str], Path]) -> None:
    forward, kv_cache = checked_forward(model_folder("llama"))
    size = kv_cache.bytes_per_token
    create_kv_memory(forward, FakeGpu(2000 * size), room_bytes=1000 * size, smallest=lambda number: number)
    assert forward.kv_cache.kv_capacity == 848  # whole blocks in 85 % of 1,000
    assert isinstance(forward.kv_cache, PagedKvCache) and forward.kv_cache.num_bytes == (848 + BLOCK) * size
    assert forward.kv_cache.max_sequences == kv_cache.max_sequences
    info = load_runner(
        ModelConfig(model=model_folder("llama"), role=Role.TARGET, dtype="float32", kv_tokens=512)
    ).info
    runner = TorchRunner(info, forward, torch.device("cpu"), "", 0)
    slot = runner.allocate(840)
    assert slot is not None and runner.kv_capacity == 848
    logits = runner.logits([ForwardInput(slot, 0, [5] * 20, 1, SamplingParams(), 20, [5] * 20, [-1])])
    assert len(logits) == 1


def test_all_ranks_measure_as_many_positions_as_the_fullest_gpu_has(
    model_folder: Callable[[str], Path],
) -> None:
    forward, kv_cache = checked_forward(model_folder("llama"))
    create_kv_memory(
        forward, FakeGpu(2000 * kv_cache.bytes_per_token), smallest=lambda number: min(number, 64)
    )
    assert forward.kv_cache.kv_capacity == 64


@pytest.mark.parametrize("free_tokens", [100, 18])
def test_measured_kv_memory_without_a_block_is_refused(
    model_folder: Callable[[str], Path], free_tokens: int
) -> None:
    forward, kv_cache = checked_forward(model_folder("llama"))
    size = kv_cache.bytes_per_token
    with pytest.raises(
        ModelError, match=r"kv_tokens is auto, and 0 fit, must be at least 16: .* GB of the GPU"
    ):
        create_kv_memory(
            forward, FakeGpu(free_tokens * size), (free_tokens - 18) * size, lambda number: number
        )
    assert kv_cache.num_bytes == 0
