"""The cost of a router, undilated: its CPU time per emitted token, and the functions that take it."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks.harness.client import Block, random_prompts, run_block
from benchmarks.harness.command import Context
from benchmarks.harness.system import (
    METRICS,
    NO_COST,
    Flags,
    Service,
    Services,
    running_services,
    simulated_flags,
)
from benchmarks.scenarios.simulate.plan import AGREEMENT, LANGUAGE, ROUTER_SETTINGS, SETTINGS, Plan
from benchmarks.scenarios.simulate.profile import Profile, make_profile
from flyserve.bench.progress import Advance, progress_bar

_PROFILED = "benchmarks.scenarios.simulate.profiled"
_MODEL = {**NO_COST, "response_tokens": list(LANGUAGE.response_tokens), "end_id": LANGUAGE.end_id}


def measure_router(plan: Plan, context: Context) -> list[Block]:
    """Measure blocks of every setting in turn, at a router with metrics and without traces.

    Raises:
        FlyServeError: A process could not be started, or a request failed.
    """
    blocks: list[Block] = []
    for launch in range(plan.repeat):
        with running_services() as services:
            measure = partial(_run_block, _start_router(services), plan)
            label = f"router, undilated, launch {launch + 1}"
            found = context.interleave(label, ROUTER_SETTINGS, plan.blocks, measure)
            blocks += [block for own in found.values() for block in own]
    return blocks


def profile_router(plan: Plan, context: Context) -> dict[str, Profile]:
    """Sample the stacks of a router, by setting.

    Raises:
        FlyServeError: A process could not be started, or a request failed.
    """
    with progress_bar(context.console, len(ROUTER_SETTINGS) * plan.profile_blocks, "profile") as advance:
        return {setting: _profile(setting, plan, advance) for setting in ROUTER_SETTINGS}


def _profile(setting: str, plan: Plan, advance: Advance) -> Profile:
    with running_services() as services:
        stacks, tokens = services.new_folder("stacks") / "stacks.json", 0
        with _ended(services, (_PROFILED, str(stacks))) as router:
            _run_block(router, plan, setting, 0)
            os.kill(router.process.pid, signal.SIGUSR1)
            before_s = router.cpu_s()
            for number in range(plan.profile_blocks):
                tokens += _run_block(router, plan, setting, number).tokens
                advance()
            cpu_s = router.cpu_s() - before_s
        return make_profile(json.loads(stacks.read_text(encoding="utf-8")), 1e3 * cpu_s / tokens)


@contextmanager
def _ended(services: Services, program: Flags) -> Iterator[Service]:
    """Yield a router, and wait for its end after the block: it writes its stacks then."""
    router = _start_router(services, program)
    yield router
    os.kill(router.process.pid, signal.SIGTERM)
    assert router.process.has_ended(30.0), "the profiled router does not end"


def _start_router(services: Services, program: Flags = ("router",)) -> Service:
    """Start a router in front of a target and a drafter whose forwards take no time."""
    target = services.start("services.target", *simulated_flags(_MODEL))
    drafter = services.start("services.drafter", *simulated_flags({**_MODEL, "agreement": AGREEMENT}))
    addresses = [target.address], [drafter.address]
    return services.start(*services.router_command(*addresses, {"telemetry": METRICS}, program))


def _run_block(router: Service, plan: Plan, setting: str, seed: int) -> Block:
    words = range(LANGUAGE.first_word, LANGUAGE.vocab_size)
    prompts = random_prompts(words, plan.requests, plan.prompt_tokens, seed)
    return run_block(router, setting, SETTINGS[setting], prompts, plan.at_once)
