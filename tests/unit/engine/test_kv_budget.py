"""KV memory on a CPU takes the bytes that a deployment counts for it."""

from pathlib import Path

import pytest
import torch

from flyserve.core.messages import Role
from flyserve.core.request import SamplingParams
from orchestration.deployment.file import Deployment
from orchestration.machine.facts import read_facts
from orchestration.machine.memory import working_bytes
from orchestration.machine.settling import settled_keys
from services.common.config import parse
from services.common.machine.machine import Machine
from services.engine.base import ForwardInput
from services.engine.config import ModelConfig
from services.engine.forward import torch_runner
from services.engine.memory.kv_cache import ContiguousKvCache
from services.engine.memory.slot_allocator import GRAIN

_FITTING = 8000


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("with_amx", [True, False])
def test_a_deployment_counts_the_bytes_that_a_position_takes(
    folder: Path, dtype: str, with_amx: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = list[torch.Tensor]()
    find = ContiguousKvCache.slot_tensor

    def record(*arguments: object) -> torch.Tensor:
        stored.append(find(*arguments))  # type: ignore[arg-type]
        return stored[-1]

    monkeypatch.setattr(ContiguousKvCache, "slot_tensor", record)
    monkeypatch.setattr(torch_runner, "has_matrix_units", lambda: with_amx)
    config = ModelConfig(role=Role.TARGET, model=folder, dtype=dtype, kv_tokens=GRAIN, row_invariant="off")
    runner = torch_runner.load_runner(config)
    stored.clear()
    slot = runner.allocate(GRAIN)
    assert slot is not None
    runner.logits([ForwardInput(slot, 0, [1, 2], 1, SamplingParams(), 1, [1, 2])])
    bytes_each = sum(each.nbytes for each in stored) // GRAIN

    facts = read_facts(folder)
    needed = facts.bytes_as(dtype) + working_bytes(512, facts.vocab_size) + _FITTING * bytes_each
    machine = Machine(memory_bytes=needed, has_matrix_units=with_amx)
    deployment = parse(Deployment, {"target": {"model": str(folder), "dtype": dtype}}, "test")
    assert settled_keys(deployment, machine, {Role.TARGET: facts})[Role.TARGET]["kv_tokens"] == _FITTING
