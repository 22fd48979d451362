"""The core over vLLM's workers and over torch: the same story gives the same tokens and entropies."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.nightly.vllm.engine_story import AT_ONCE, CASES
from tests.nightly.vllm.vllm_rig import vllm_python
from tests.support.processes import ROOT, TARGET_MODEL

pytestmark = pytest.mark.timeout(1800)

KEYS = {
    "model": str(TARGET_MODEL),
    "dtype": "float32",
    "max_sequences": AT_ONCE,
    "max_queued": 100,
    "max_batch_tokens": 64,
}
ON_VLLM = {**KEYS, "engine": "vllm"}
SMALL = {"kv_cache_memory_bytes": 64 << 20, "num_gpu_blocks_override": 27, "max_model_len": 640}
"""KV memory for about half of the sequences."""


def story(python: str, keys: dict[str, Any]) -> dict[str, Any]:
    script = str(Path(__file__).with_name("engine_story.py"))
    ended = subprocess.run(
        [python, script, json.dumps(keys)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    return story(sys.executable, {**KEYS, "kv_tokens": 832})


@pytest.mark.parametrize(
    "more",
    [
        {"engine_args": SMALL},
        {"engine_args": SMALL, "shards": 2},
        {"engine_args": {**SMALL, "pipeline_parallel_size": 2}},
    ],
    ids=["one process", "two shards", "two stages"],
)
def test_tokens_entropies_and_logprobs_are_those_of_torch(
    expected: dict[str, Any], more: dict[str, Any]
) -> None:
    found = story(vllm_python(), {**ON_VLLM, **more})
    for name in CASES:
        assert found[name]["tokens"] == expected[name]["tokens"]
        assert found[name]["verified"] == expected[name]["tokens"]
        for ours, theirs in zip(found[name]["entropies"], expected[name]["entropies"], strict=True):
            assert ours == pytest.approx(theirs, abs=1e-3)
        for ours, theirs in zip(found[name]["logprobs"], expected[name]["logprobs"], strict=True):
            assert [each["choice"] for each in ours] == pytest.approx(
                [each["choice"] for each in theirs], abs=1e-3
            )
    assert found["load"]["preemptions"] and found["load"]["reused_tokens"]
    assert found["load"]["kv_used"] == 0
