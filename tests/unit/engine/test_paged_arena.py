"""Shared blocks: held once, copied before they are written, and a model computes the same over them."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fly.errors import ConfigError
from fly.messages import Role
from fly.request import SamplingParams
from services.engine.base import Work
from services.engine.forward.attention import RaggedForward
from services.engine.forward.fused import FusedForward
from services.engine.forward.linears import PlainLinear
from services.engine.forward.plan import Plan
from services.engine.forward.torch_runner import TorchRunner, choose_forward, load_runner, make_arena
from services.engine.loading.model import load_model
from services.engine.memory.arena import ContiguousArena
from services.engine.memory.paged_arena import PagedArena

BLOCK = 16


def rows(numbers: list[int]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float32).view(1, -1, 1)


def write(arena: Any, slot: int, start: int, numbers: list[int]) -> list[float]:
    """What the slot holds after a write at `start`."""
    assert arena.resize(slot, start + len(numbers), start)
    keys, values = arena.store(0, slot, start, rows(numbers), rows(numbers) + 0.5)
    assert torch.equal(keys + 0.5, values)
    held: list[float] = keys.flatten().tolist()
    return held


def test_a_shared_beginning_is_held_once() -> None:
    arena = PagedArena(160, 3)
    first = arena.allocate(40)
    write(arena, first, 0, list(range(40)))
    second = arena.allocate(40)
    assert arena.kv_used == 96
    assert arena.copy_prefix(first, second, 32) and arena.kv_used == 64
    assert write(arena, second, 32, [7] * 8) == [*range(32), *[7.0] * 8]
    assert write(arena, first, 40, [8]) == [*range(40), 8]
    arena.retire(first, 32)
    assert (arena.kv_used, arena.kv_cached) == (48, 0)
    arena.retire(second, 40)
    assert (arena.kv_used, arena.kv_cached) == (48, 48)
    arena.free(second)
    assert (arena.kv_used, arena.kv_cached) == (32, 32)
    arena.free(first)
    assert (arena.kv_used, arena.kv_cached) == (0, 0)


@pytest.mark.parametrize("start", [0, 5, 16, 20, 31])
def test_who_writes_into_a_shared_block_leaves_the_others_as_they_were(start: int) -> None:
    arena = PagedArena(160, 3)
    first, second = arena.allocate(32), arena.allocate(1)
    write(arena, first, 0, list(range(32)))
    assert arena.copy_prefix(first, second, 32)
    assert write(arena, second, start, [99]) == [*range(start), 99]
    assert write(arena, first, 32, [32]) == list(range(33))
    assert arena.kv_used == 4 * BLOCK


def test_the_rest_of_a_prefix_is_copied() -> None:
    arena = PagedArena(160, 3)
    first, second = arena.allocate(32), arena.allocate(1)
    write(arena, first, 0, list(range(32)))
    assert arena.copy_prefix(first, second, 20) and arena.kv_used == 48
    assert write(arena, second, 20, [7]) == [*range(20), 7]
    assert write(arena, first, 32, [32]) == list(range(33))


def test_a_write_into_shared_blocks_needs_room_and_changes_nothing_without() -> None:
    arena = PagedArena(32, 2)
    first, second = arena.allocate(32), arena.allocate(0)
    write(arena, first, 0, list(range(32)))
    assert arena.copy_prefix(first, second, 32)
    assert not arena.resize(second, 32, 20)
    assert arena.resize(second, 32) and arena.resize(first, 0)
    assert write(arena, second, 20, [7]) == [*range(20), 7]


def test_whole_blocks_are_the_capacity_and_there_must_be_one() -> None:
    assert PagedArena(47, 1).kv_capacity == 32
    with pytest.raises(ConfigError, match="kv_tokens is 15, must be at least 16"):
        PagedArena(15, 1)


ACTION = st.tuples(st.sampled_from(["open", "write", "share", "evict", "retire", "free"]), st.integers(0, 99))


@given(st.lists(ACTION, max_size=60), st.integers(0, 2**32))
@settings(deadline=None)
def test_every_slot_holds_what_was_written_to_it(actions: list[tuple[str, int]], seed: int) -> None:
    arena, draw = PagedArena(320, 4), Random(seed)
    held: dict[int, list[int]] = {}
    retired: set[int] = set()
    for action, number in actions:
        opened = [slot for slot in held if slot not in retired]
        slot = opened[number % len(opened)] if opened else None
        if action == "open" and (new := arena.allocate(number)) is not None:
            assert new not in held
            held[new] = []
        elif action == "free" and held:
            gone = list(held)[number % len(held)]
            arena.free(gone)
            retired.discard(gone)
            del held[gone]
        elif slot is None:
            continue
        elif action == "write":
            start = draw.randint(0, len(held[slot]))
            new = [draw.randrange(1000) for _ in range(1 + number % 40)]
            if arena.resize(slot, start + len(new), start):
                held[slot] = held[slot][:start] + new
                assert write(arena, slot, start, new) == held[slot]
        elif action == "share":
            source = draw.choice(list(held))
            length = draw.randint(0, len(held[source]))
            if source != slot and arena.copy_prefix(source, slot, length):
                held[slot] = held[source][:length]
        elif action == "evict":
            assert arena.resize(slot, 0)
            held[slot] = []
        elif action == "retire":
            length = draw.randint(0, len(held[slot]))
            arena.retire(slot, length)
            held[slot] = held[slot][:length]
            retired.add(slot)
        check(arena, held, retired)
    for slot in list(held):
        arena.free(slot)
    assert arena.kv_used == arena.kv_cached == 0


def check(arena: PagedArena, held: dict[int, list[int]], retired: set[int]) -> None:
    tables = {slot: arena._ledger.table(slot) for slot in held}
    used = set().union(*tables.values())
    opened = set().union(*(table for slot, table in tables.items() if slot not in retired))
    assert arena.kv_used == BLOCK * len(used) <= arena.kv_capacity
    assert arena.kv_cached == BLOCK * len(used - opened)
    for slot, numbers in held.items():
        if arena._layers:
            positions = arena._rows_of(slot, torch.device("cpu"))[: len(numbers)]
            assert arena._layers[0][positions, 0].flatten().tolist() == numbers


def forwards(kind: str, folder: Path, arena: Any) -> Any:
    model = load_model(folder, "float32").model
    return FusedForward(model, arena, PlainLinear) if kind == "fused" else RaggedForward(model, arena)


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["fused", "ragged"])
def test_models_compute_over_blocks_what_they_compute_over_contiguous_memory(
    model_folder: Callable[[str], Path], kind: str
) -> None:
    draw = Random(1)
    ids = [[draw.randrange(96) for _ in range(60)] for _ in range(2)]
    ids[1][:32] = ids[0][:32]
    answers = []
    for arena in (ContiguousArena(256, 2), PagedArena(256, 2)):
        forward = forwards(kind, model_folder("llama"), arena)
        slots = [arena.allocate(1), arena.allocate(1)]
        logits = []
        for index, start, end in (
            (0, 0, 30),
            (0, 30, 40),
            (1, 32, 50),
            (0, 35, 60),
            (1, 45, 60),
            (1, 20, 60),
        ):
            if index == 1 and start == 32:
                assert arena.copy_prefix(slots[0], slots[1], 32)
            assert arena.resize(slots[index], end, start)
            work = Work(
                slots[index], start, ids[index][start:end], end - start, SamplingParams(), 0, ids[index]
            )
            logits.append(forward(Plan([work])))
        answers.append(torch.cat(logits))
    torch.testing.assert_close(answers[1], answers[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_a_runner_over_blocks_passes_the_self_check(model_folder: Callable[[str], Path], kind: str) -> None:
    loaded = load_model(model_folder(kind), "float32")
    forward, description = choose_forward(loaded, PagedArena(512, 4), "cpu")
    assert isinstance(forward.arena, PagedArena) and forward.arena.kv_used == 0
    assert description.startswith("fused" if kind == "llama" else "ragged")
    info = load_runner(model_folder(kind), role=Role.TARGET, dtype="float32", kv_tokens=512).info
    runner = TorchRunner(info, forward, torch.device("cpu"), description, 0)
    slot = runner.allocate(20)
    assert slot is not None
    (scores,) = runner.forward([Work(slot, 0, [5] * 20, 1, SamplingParams(), 20, [5] * 20, [-1])])
    other = runner.allocate(0)
    assert other is not None and runner.copy_prefix(slot, other, 16) and runner.kv_used == 32
    assert runner.resize(other, 20, 16)
    (again,) = runner.forward([Work(other, 16, [5] * 4, 1, SamplingParams(), 20, [5] * 20, [-1])])
    assert again.choices == scores.choices


def test_the_device_chooses_the_memory() -> None:
    assert isinstance(make_arena(64, 1, torch.float32, "cpu"), ContiguousArena)
    assert isinstance(make_arena(64, 1, torch.bfloat16, "cuda"), PagedArena)
    assert isinstance(make_arena(64, 1, torch.bfloat16, "cuda:1"), PagedArena)
