"""A router's CPU time per emitted token, undilated."""

from functools import partial

from benchmarks.harness.client import Block, random_prompts, run_block
from benchmarks.harness.command import Context
from benchmarks.harness.system import METRICS, NO_COST, Service, running_services
from benchmarks.scenarios.capacity.plan import AGREEMENT, LANGUAGE, ROUTER_SETTINGS, SETTINGS, Plan

AT_ONCE = 8
_MODEL = {**NO_COST, "response_tokens": list(LANGUAGE.response_tokens), "end_id": LANGUAGE.end_id}


def measure_router(plan: Plan, context: Context) -> dict[str, list[Block]]:
    """Measure blocks of every setting in turn, at a router with metrics and without traces."""
    blocks: dict[str, list[Block]] = {name: [] for name in ROUTER_SETTINGS}
    for launch in range(plan.repeat):
        with running_services() as services:
            # NOTE: the forwards of its target and drafter take no time.
            replicas = services.start_replicas(_MODEL, AGREEMENT)
            router = services.start(*services.router_command(*replicas, {"telemetry": METRICS}))
            label = f"router, undilated, launch {launch + 1}"
            found = context.interleave(label, ROUTER_SETTINGS, plan.blocks, partial(_run_block, router, plan))
        for name, own in found.items():
            blocks[name] += own
    return blocks


def _run_block(router: Service, plan: Plan, setting: str, seed: int) -> Block:
    words = range(LANGUAGE.first_word, LANGUAGE.vocab_size)
    prompts = random_prompts(words, plan.requests, plan.prompt_tokens, seed)
    return run_block(router, setting, SETTINGS[setting], prompts, AT_ONCE)
