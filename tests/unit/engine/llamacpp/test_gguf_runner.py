"""GGUF files on llama.cpp: logits against transformers, and any order of roll-back and sharing."""

import random
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from flyserve.core.blocks import BLOCK_TOKENS
from flyserve.core.errors import ModelError
from services.common.gguf.header import read_header
from services.engine.base import ForwardInput, KvSlot, RunnerLost
from services.engine.llamacpp import contexts, library
from services.engine.llamacpp.start import kv_bytes
from tests.support.tiny_models import CONTEXT, VOCAB_SIZE
from tests.unit.engine.llamacpp.gguf_rig import (
    NEAR,
    Load,
    allocated,
    expected,
    file_of,
    rejection,
    rows,
)


def test_logits_are_those_of_transformers(load: Load) -> None:
    runner = load()
    texts = [[3, 14, 15, 9, 26], [5] * 30, [35, 8, 9]]
    batch = [rows(allocated(runner, CONTEXT), ids) for ids in texts]
    found = runner.logits(batch).split([len(ids) for ids in texts])
    for ids, logits in zip(texts, found, strict=True):
        assert float((logits - expected(ids)).abs().max()) < NEAR
    info = runner.info
    assert (info.vocab_size, info.context_length, info.kv_capacity) == (VOCAB_SIZE, CONTEXT, 512)
    assert (info.engine, info.engine_version, info.quantization) == (
        "llamacpp",
        library.VERSION,
        "(guessed) all F32",
    )


def test_a_file_of_the_hub_is_loaded_from_its_copy(
    load: Load, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    commit = "c" * 40
    (tmp_path / "models--org--name" / "snapshots" / commit / "q4").mkdir(parents=True)
    shutil.copy(file, tmp_path / "models--org--name" / "snapshots" / commit / "q4" / "tiny.gguf")
    named = load(model=Path(f"org/name@{commit}/q4/tiny.gguf")).info
    assert (named.model_id, named.weight_fingerprint) == ("tiny", load().info.weight_fingerprint)
    with pytest.raises(ModelError, match="the model hub has no file other"):
        load(model=Path(f"org/name@{commit}/other.gguf"))


@pytest.mark.parametrize("kind", ["llama_odd", "mistral_full", "qwen2", "qwen3", "gemma3"])
def test_architectures_of_today(load: Load, kind: str, tmp_path: Path) -> None:
    ids = [(7 * place) % VOCAB_SIZE for place in range(40)]
    runner = load(model=file_of(kind, tmp_path))
    slot = allocated(runner, CONTEXT)
    runner.logits([rows(slot, [*ids[:30], 1, 2, 3])])
    found = runner.logits([rows(slot, ids, 30)])  # after a roll-back, beyond the window of Gemma's layers
    assert float((found - expected(ids, kind)[30:]).abs().max()) < NEAR
    assert kv_bytes(read_header(tmp_path / "tiny.gguf")) > 0


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_any_order_of_rollback_sharing_and_preemption_computes_the_same(
    load: Load, kind: str, tmp_path: Path
) -> None:
    runner, chance = load(model=file_of(kind, tmp_path)), random.Random(1)
    known: dict[KvSlot, list[int]] = {allocated(runner, CONTEXT): [] for _ in range(3)}
    for _ in range(60):
        slot, source = chance.choice([*known]), chance.choice([*known])
        keep = len(known[source]) // BLOCK_TOKENS * BLOCK_TOKENS
        if chance.random() < 0.1:
            assert runner.resize(slot, 0)
            known[slot] = []
        elif chance.random() < 0.3 and slot != source and keep:
            assert runner.copy_prefix(source, slot, keep)
            known[slot] = known[source][:keep]
        kept = known[slot][: chance.randint(max(0, len(known[slot]) - 9), len(known[slot]))]
        new = chance.choices(range(VOCAB_SIZE), k=min(chance.choice([1, 4, 24]), CONTEXT - len(kept)))
        if not new:
            kept, new = [], [1, 2, 3]
        known[slot] = [*kept, *new]
        assert runner.resize(slot, len(known[slot]), len(kept))
        logits = runner.logits([rows(slot, known[slot], len(kept))])
        difference = logits - expected(known[slot], kind)[len(kept) :]
        assert float(difference.abs().max()) < NEAR
    for slot in known:
        runner.free(slot)
    assert runner.kv_used == 0


@pytest.mark.parametrize("kept", [16, 44])
@pytest.mark.parametrize("is_shared", [True, False])
def test_keys_that_a_window_has_passed_are_there_for_a_shared_prefix_and_a_roll_back(
    load: Load, kept: int, is_shared: bool, tmp_path: Path
) -> None:
    """libllama would give their cells to the rows of `other`, and remove those of earlier positions."""
    file = file_of("gemma3", tmp_path)
    runner, fresh, ids = load(model=file), load(model=file), list(range(48))
    short, slot, other = (allocated(runner, length) for length in (12, CONTEXT, CONTEXT))
    runner.logits([rows(short, [9] * 12, outputs=0)])
    runner.logits([rows(slot, ids, outputs=0)])
    runner.free(short)
    runner.logits([rows(other, [5] * 60, outputs=0)])
    if is_shared:
        source, slot = slot, allocated(runner, 0)
        assert runner.copy_prefix(source, slot, kept)
        assert runner.resize(slot, CONTEXT, kept)
    text = [*ids[:kept], 1, 2, 3]
    found = runner.logits([rows(slot, text, kept)])
    wanted = fresh.logits([rows(allocated(fresh, CONTEXT), text)])[kept:]
    assert float((found - wanted).abs().max()) < NEAR


def test_the_library_computes_all_rows_of_a_forward_at_once(load: Load) -> None:
    """A cell has no twin before its forward ends, so a later part of it must not look for cells."""
    runner, found = load(max_batch_tokens=2048), library.load_library()
    assert found.llama_n_ubatch(runner._context) == runner._num_rows == 512


def test_a_shared_prefix_takes_its_memory_once_and_outlives_its_first_owner(load: Load) -> None:
    runner, ids = load(kv_tokens=128), list(range(1, 49))
    first = allocated(runner, 48)
    runner.logits([rows(first, ids, outputs=0)])
    others = [allocated(runner, 0) for _ in range(3)]
    assert all(runner.copy_prefix(first, other, 48) for other in others)
    assert runner.kv_used == 48
    runner.free(first)
    texts = [[*ids, 50 + index] for index in range(3)]
    assert all(runner.resize(slot, 49, 48) for slot in others)
    found = runner.logits([rows(slot, text, 48) for slot, text in zip(others, texts, strict=True)])
    for text, logits in zip(texts, found, strict=True):
        assert float((logits - expected(text)[-1]).abs().max()) < NEAR


def test_cached_sequences_end_before_the_library_has_no_number_left(load: Load) -> None:
    runner = load(max_sequences=2, kv_tokens=1024)
    for number in range(4):
        slot = allocated(runner, 16)
        runner.logits([rows(slot, [number] * 16, outputs=0)])
        runner.retire(slot, 16)
    assert runner.allocate(16) is None and runner.kv_cached == 64
    runner.free(0)
    assert runner.allocate(16) == 0


def test_a_forward_without_outputs_and_many_rows(load: Load) -> None:
    runner = load()
    slots = [allocated(runner, 32) for _ in range(2)]
    texts = [list(range(32)), list(range(32, 64))]
    assert runner.logits([rows(s, t, outputs=0) for s, t in zip(slots, texts, strict=True)]).shape[0] == 0
    found = runner.logits([rows(s, [*t, 7], 32) for s, t in zip(slots, texts, strict=True)])
    for text, logits in zip(texts, found, strict=True):
        assert float((logits - expected([*text, 7])[-1]).abs().max()) < NEAR


@pytest.mark.parametrize(
    ("deterministic", "lengths"),
    [(False, [49]), (False, [64]), (False, [40, 20]), (True, [64, 33]), (True, [64, 34, 1])],
)
def test_a_batch_of_more_rows_than_the_library_takes_is_divided(
    load: Load, deterministic: bool, lengths: list[int]
) -> None:
    """It takes 48 at once here, or 96: a prompt that is scored may have more than `max_batch_tokens`."""
    runner = load(max_batch_tokens=16, deterministic=deterministic)
    texts = [[(7 * place + length) % VOCAB_SIZE for place in range(length)] for length in lengths]
    batch = [rows(allocated(runner, len(ids)), ids, outputs=(len(ids) + 1) // 2) for ids in texts]
    wanted = torch.cat([expected(ids)[len(ids) // 2 :] for ids in texts])
    assert float((runner.logits(batch) - wanted).abs().max()) < NEAR


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_deterministic_rows_have_the_bits_of_a_prefill(
    load: Load, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under full memory, after roll-backs, copies, preemption and failed forwards, again and again."""
    file = file_of(kind, tmp_path)
    runner, chance = load(model=file, deterministic=True, kv_tokens=4 * CONTEXT), random.Random(2)
    assert runner.info.row_invariant
    found = library.load_library()
    decode, num_rows = found.llama_decode, 0

    def decode_mostly(context: int, batch: library.Batch) -> int:
        nonlocal num_rows
        num_rows += batch.n_tokens
        return 2 if chance.random() < 0.05 else int(decode(context, batch))

    monkeypatch.setattr(found, "llama_decode", decode_mostly)

    def computed(batch: list[ForwardInput]) -> tuple[Tensor, ...]:
        while True:
            try:
                logits = runner.logits(batch).clone()
            except RuntimeError as error:
                assert "failed with code 2" in str(error)
                continue
            return logits.split([item.num_outputs for item in batch])

    known: dict[KvSlot, list[int]] = {allocated(runner, CONTEXT): [] for _ in range(3)}
    for _ in range(100):
        batch = []
        for slot in chance.sample([*known], chance.randint(1, 3)):
            source = chance.choice([*known])
            keep = len(known[source]) // BLOCK_TOKENS * BLOCK_TOKENS
            if chance.random() < 0.1:
                assert runner.resize(slot, 0)
                known[slot] = []
            elif chance.random() < 0.3 and keep and not {slot, source} & {item.slot for item in batch}:
                assert slot == source or runner.copy_prefix(source, slot, keep)
                known[slot] = known[source][:keep]
            kept = known[slot][: chance.randint(max(0, len(known[slot]) - 9), len(known[slot]))]
            new = chance.choices(range(VOCAB_SIZE), k=min(chance.choice([1, 1, 4, 24]), CONTEXT - len(kept)))
            kept, new = (kept, new) if new else ([], [1, 2, 3])
            known[slot] = [*kept, *new]
            assert runner.resize(slot, len(known[slot]), len(kept))
            batch.append(rows(slot, known[slot], len(kept)))
        for item, logits in zip(batch, computed(batch), strict=True):
            alone = allocated(runner, item.end)
            assert torch.equal(logits, computed([rows(alone, known[item.slot])])[0][item.start :])
            runner.free(alone)
    assert num_rows > 4 * runner.kv_capacity


@pytest.mark.parametrize("fault", ["order", "attention"])
def test_rows_that_depend_on_others_are_refused_where_they_must_not(
    load: Load, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not load().info.row_invariant
    if fault == "order":
        monkeypatch.setattr(contexts, "OrderedCells", contexts.Cells)
    else:
        monkeypatch.setattr(contexts, "_BFLOAT16", 1)  # in 16 bits, as without the key
    assert "deterministic: is true, but rows of tiny" in rejection(load, deterministic=True)


def test_memory_that_cannot_be_restored_ends_the_runner(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = load(deterministic=True, kv_tokens=128)
    monkeypatch.setattr(library.load_library(), "llama_state_seq_set_data", lambda *_: 0)
    slot = allocated(runner, 48)
    with pytest.raises(RunnerLost, match="cannot save and restore its KV memory"):
        for _ in range(20):
            runner.logits([rows(slot, range(48))])
