"""Plain, exact and FLy through gRPC: target, drafter and router as processes of their own, without Ray."""

import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.aligned_pair.folders import PairFolders
from benchmarks.harness.client import PLAIN, generate_all, random_prompts, speculation
from benchmarks.harness.command import Context
from benchmarks.harness.system import Flags, model_flags, running_services
from benchmarks.scenarios.gpu.plan import DRAFT_LENGTH, Plan
from benchmarks.scenarios.gpu.results import Served, Turn
from fly.request import SamplingParams, SpeculationParams
from fly.types import Mode
from flyserve.bench.statistics import mean_tau, share
from flyserve.client import Client

PLAIN_NAME, EXACT, FLY = "plain", "exact", "FLy"
WAYS: dict[str, SpeculationParams] = {
    PLAIN_NAME: PLAIN,
    EXACT: speculation(Mode.EXACT, DRAFT_LENGTH),
    FLY: speculation(Mode.FLY, DRAFT_LENGTH),
}
PROMPT_TOKENS = 64
_ROOM = 64
"""KV positions of a sequence beside prompt and response: drafts, and the rest of a block."""


def measure_serving(plan: Plan, folders: PairFolders, context: Context) -> list[Served]:
    """Serve the pair, and send requests; later numbers of requests are left out if the time is over."""
    with running_services() as services:
        commands = [
            ("services.target", *_flags(plan, folders.target)),
            ("services.drafter", *_flags(plan, folders.drafter)),
        ]
        target, drafter = services.start_together(commands)
        config = {"model": str(folders.target)}
        command = services.router_command([target.address], [drafter.address], config)
        router = services.start(*command)
        started, found = time.monotonic(), list[Served]()
        with Client(router.address) as client:
            for streams in plan.streams:
                if time.monotonic() - started > plan.serve_s:
                    break
                found.append(_measure_streams(plan, client, streams, context))
    return found


def _measure_streams(plan: Plan, client: Client, streams: int, context: Context) -> Served:
    prompts = random_prompts(range(plan.pair.vocab_size), streams, PROMPT_TOKENS)

    def measure(name: str, turn: int) -> Turn:
        # NOTE: its own salt, so that no prompt is in a prefix cache.
        return _send(client, prompts, WAYS[name], plan.max_new_tokens, f"{streams} {name} {turn}")

    return Served(streams, context.interleave(f"{streams} at once", tuple(WAYS), plan.repeat, measure))


def _send(
    client: Client, prompts: Sequence[Sequence[int]], way: SpeculationParams, count: int, salt: str
) -> Turn:
    ending = SamplingParams(ignore_eos=True)
    responses, seconds = generate_all(client, prompts, count, way, salt, ending)
    told = [response.statistics for response in responses]
    rounds = sum(each.rounds for each in told)
    return Turn(
        seconds=seconds,
        tokens=[[token.id for token in response.tokens] for response in responses],
        tau=mean_tau(told),
        verify_s=share(sum(each.verify_s for each in told), rounds),
        draft_s=share(sum(each.draft_s for each in told), sum(each.drafter_forwards for each in told)),
        wire_s=share(sum(each.wire_s for each in told), rounds),
    )


def _flags(plan: Plan, folder: Path) -> Flags:
    streams = max(plan.streams)
    kv_tokens = streams * (PROMPT_TOKENS + plan.max_new_tokens + _ROOM)
    return (*model_flags(folder, "bfloat16", streams, kv_tokens), "--device", plan.device)
