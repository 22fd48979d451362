"""Plain, exact and FLy through gRPC: target, drafter and router as processes of their own, without Ray."""

import time
from pathlib import Path

from benchmarks.aligned_pair.folders import PairFolders
from benchmarks.harness.client import random_prompts, ways_by_mode
from benchmarks.harness.command import Context
from benchmarks.harness.load import Level, Window
from benchmarks.harness.system import Flags, model_flags, running_services
from benchmarks.harness.windows import Way, run_level
from benchmarks.scenarios.gpu.plan import DRAFT_LENGTH, Plan

BASELINE = "plain"
WAYS = ways_by_mode(DRAFT_LENGTH)
_NUM_PROMPTS, _PROMPT_TOKENS, _ROOM = 256, 64, 1024
"""Prompts, the tokens of each, and the KV positions of a sequence."""


def measure_serving(plan: Plan, folders: PairFolders, context: Context) -> list[Window]:
    """Serve the pair, and send requests; later numbers of requests are left out if the time is over."""
    prompts = random_prompts(range(plan.pair.vocab_size), _NUM_PROMPTS, _PROMPT_TOKENS)
    with running_services() as services:
        commands = [
            ("services.target", *_flags(plan, folders.target)),
            ("services.drafter", *_flags(plan, folders.drafter)),
        ]
        target, drafter = services.start_together(commands)
        config = {"model": str(folders.target), "max_concurrent": max(plan.streams)}
        router = services.start(*services.router_command([target.address], [drafter.address], config))
        ways = {name: Way(router.address, way) for name, way in WAYS.items()}
        started, found = time.monotonic(), list[Window]()
        for streams in plan.streams:
            if time.monotonic() - started > plan.serve_s:
                break
            level = Level(streams, plan.window_s / 4, plan.window_s)
            found += run_level(ways, level, plan.repeat, 1, prompts, context)
    return found


def _flags(plan: Plan, folder: Path) -> Flags:
    streams = max(plan.streams)
    return (*model_flags(folder, "bfloat16", streams, streams * _ROOM), "--device", plan.device)
