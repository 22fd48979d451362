"""A new process loads every supported model without torch's compiler, which works afterwards."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.processes import ROOT
from tests.support.tiny_models import ARCHITECTURES

LOAD = """
import gc, json, sys
from services.engine.loading.light_start import light_start
from services.target.config import TargetConfig

def imported():
    heavy = ("torch._dynamo", "torch._inductor", "torch.distributed.tensor", "torch.distributed.fsdp")
    return [name for name in heavy if name in sys.modules]

descriptions = []
for folder in sys.argv[1:]:
    with light_start(is_whole=True):
        from services.engine.forward.torch_runner import load_runner
        runner = load_runner(TargetConfig(model=folder, dtype="float32", max_sequences=2, kv_tokens=256))
    descriptions.append(runner.description)
found = {"imported": imported(), "descriptions": descriptions, "collects": gc.isenabled()}

import torch
found["compiled"] = torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item()
found["imported later"] = imported()
print(json.dumps(found))
"""


def test_every_model_loads_without_the_compiler_which_works_afterwards(
    model_folder: Callable[[str], Path],
) -> None:
    folders = [str(model_folder(kind)) for kind in ARCHITECTURES]
    done = subprocess.run([sys.executable, "-c", LOAD, *folders], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["imported"] == [] and found["collects"]
    assert len(found["descriptions"]) == len(ARCHITECTURES)
    assert found["compiled"] == 2.0 and "torch._dynamo" in found["imported later"]
