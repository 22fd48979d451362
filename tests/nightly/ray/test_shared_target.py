"""A target replica of two processes with real weights in fp32: responses, and restart after a loss."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from demo.tasks import Task, load_tasks
from demo.tokenizer import render
from flyserve import Client, SpeculationParams
from flyserve.core.types import Mode
from orchestration.control.status import ReplicaState
from orchestration.deployment.file import Deployment
from orchestration.local.runner import LocalDeployment, LocalOptions, local_deployment
from services.common.config import parse
from tests.support.descendants import titled
from tests.support.local_ray import eventually
from tests.support.processes import DRAFTER_MODEL, ROOT, TARGET_MODEL

NUM_PROBLEMS = 8
MAX_NEW_TOKENS = 96
CONCURRENCY = 8
TIE = 1e-4
"""Two logits closer than this may change order with the shape of a forward."""
SHARED = {
    "target": {
        "model": str(TARGET_MODEL),
        "shards": 2,
        "dtype": "float32",
        "max_sequences": CONCURRENCY,
        "kv_tokens": 16_384,
        "group_timeout_s": 15,
    },
    "drafter": {"model": str(DRAFTER_MODEL), "dtype": "float32", "max_sequences": CONCURRENCY},
    "router": {"grpc_port": 0},
}


def responses(address: str, problems: Sequence[Task]) -> list[list[int]]:
    """Return the token ids of every response; requests run concurrently."""
    with Client(address) as client, ThreadPoolExecutor(CONCURRENCY) as pool:

        def respond(task: Task) -> list[int]:
            exact = SpeculationParams(mode=Mode.EXACT)
            response = client.generate(render(task.prompt), MAX_NEW_TOKENS, speculation=exact)
            return [token.id for token in response.tokens]

        return list(pool.map(respond, problems))


@torch.inference_mode()
def first_difference(
    whole: LlamaForCausalLM, prompt: list[int], response: list[int]
) -> tuple[int, float] | None:
    """Return the first position where the model chooses another token, and the gap of its two best logits."""
    logits = whole(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
    best = logits.topk(2).values
    for position, (chosen, token) in enumerate(zip(logits.argmax(-1).tolist(), response, strict=True)):
        if chosen != token:
            return position, float(best[position, 0] - best[position, 1])
    return None


def generation(running: LocalDeployment) -> int:
    """Return the generation of the target that is ready; 0 if none is."""
    ready = {
        row.replica: row.generation for row in running.status().replicas if row.state is ReplicaState.READY
    }
    return ready.get("target-0", 0)


def test_two_shards_respond_like_one_process_and_a_lost_one_is_replaced() -> None:
    problems = load_tasks(NUM_PROBLEMS)
    options = LocalOptions(startup_timeout_s=600.0)
    with local_deployment(parse(Deployment, SHARED, "test"), lambda status: None, options) as running:
        found = responses(running.address, problems)
        with Client(running.address) as client:
            prompts = [[piece.id for piece in client.tokenize(render(task.prompt))] for task in problems]

        (lost,) = titled("ray::TargetFollower")
        (leader,) = titled("ray::TargetActor")
        os.kill(lost.pid, signal.SIGKILL)
        eventually(lambda: generation(running) == 2)
        assert not leader.is_running()
        (replacement,) = titled("ray::TargetFollower")
        assert replacement.pid != lost.pid
        assert responses(running.address, problems[:2]) == found[:2]

    whole = LlamaForCausalLM.from_pretrained(TARGET_MODEL, dtype=torch.float32).eval()
    differences = [
        difference
        for prompt, response in zip(prompts, found, strict=True)
        if (difference := first_difference(whole, prompt, response)) is not None
    ]
    assert len(differences) <= 1, differences
    assert all(gap <= TIE for _, gap in differences), differences


def test_heads_that_cannot_be_divided_are_rejected_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text(f"target: {{model: {TARGET_MODEL}, shards: 4}}\nrouter: {{grpc_port: 0}}\n")
    command = [str(Path(sys.executable).with_name("flyserve")), "up", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    # The lines before it are the notes of a start.
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert "target-0 cannot be started" in line
    assert "shards is 4: must divide the 6 attention heads and the 2 KV heads of llama" in line
