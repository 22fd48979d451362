"""A router's CPU time, undilated: per emitted token, and by part of a request, package and function."""

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

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
from flyserve.bench.progress import Advance, progress_bar

OUTSIDE = "event loop, gRPC and its threads (no Python)"
_PARTS: Mapping[str, str] = {
    "router.servicer:GenerationServicer.GenerateStream.<locals>.make_emit": "emit: a chunk to the client",
    "router.generation.response:make_chunk": "text and tokens of a chunk",
    "router.generation.round:propose": "propose: a step to the drafter and back",
    "router.generation.round:verify": "verify: a step to the target and back",
    "router.generation.round:decide": "decide: the rule, detokenizing, counting",
    "router.generation.generation:open_speculative": "open and close the streams",
    "router.service:GenerationService._prepare": "check a request",
    "router.generation.response:run_round": "a round, what is left of it",
    "router.": "a request, what is left of it",
}
"""Part of a request by prefix: the first prefix that any function of a stack begins with counts."""
_LOOP = ("asyncio.runners:", "asyncio.base_events:")


@dataclass(frozen=True, slots=True)
class Profile:
    """Shares of a router's CPU time, the largest first.

    Attributes:
        cpu_ms: CPU time per emitted token, while it was sampled.
        samples: Number of samples.
        parts: Shares by part of a request.
        packages: Shares by the package of the running function.
        functions: Shares by that function.
    """

    cpu_ms: float
    samples: int
    parts: tuple[tuple[str, float], ...]
    packages: tuple[tuple[str, float], ...]
    functions: tuple[tuple[str, float], ...]


def make_profile(stacks: Sequence[Mapping[str, Any]], cpu_ms: float) -> Profile:
    """Return the profile of stacks, each with its outermost function first and its number of samples."""
    parts, packages, functions = Counter[str](), Counter[str](), Counter[str]()
    for each in stacks:
        stack, seen = each["stack"], each["samples"]
        parts[_part(stack)] += seen
        packages[_package(stack)] += seen
        functions[OUTSIDE if _is_outside(stack) else stack[-1]] += seen
    total = sum(parts.values())
    shares = (
        tuple((name, seen / total) for name, seen in counts.most_common())
        for counts in (parts, packages, functions)
    )
    return Profile(cpu_ms, total, *shares)


def _part(stack: Sequence[str]) -> str:
    if _is_outside(stack):
        return OUTSIDE
    for begin, part in _PARTS.items():
        if any(function.startswith(begin) for function in stack[_entry(stack) :]):
            return part
    return "everything else"


def _package(stack: Sequence[str]) -> str:
    """Return the folder of the project's own modules, and the first name of others."""
    if _is_outside(stack):
        return OUTSIDE
    parts = stack[-1].partition(":")[0].split(".")
    if parts[0] == "<string>":
        return "dataclasses (made functions)"
    return ".".join(parts[:2] if parts[0] in ("services", "router") and len(parts) > 2 else parts[:1])


def _is_outside(stack: Sequence[str]) -> bool:
    return stack[-1].startswith(_LOOP)


def _entry(stack: Sequence[str]) -> int:
    """Return the index of the first function that the event loop calls."""
    loops = [at for at, function in enumerate(stack) if function.startswith(_LOOP)]
    return loops[-1] + 1 if loops else 0


_PROFILED = "benchmarks.scenarios.simulate.profiled"
_MODEL = {**NO_COST, "response_tokens": list(LANGUAGE.response_tokens), "end_id": LANGUAGE.end_id}


def measure_router(plan: Plan, context: Context) -> list[Block]:
    """Measure blocks of every setting in turn, at a router with metrics and without traces."""
    blocks: list[Block] = []
    for launch in range(plan.repeat):
        with running_services() as services:
            measure = partial(_run_block, _start_router(services), plan)
            label = f"router, undilated, launch {launch + 1}"
            found = context.interleave(label, ROUTER_SETTINGS, plan.blocks, measure)
            blocks += [block for own in found.values() for block in own]
    return blocks


def profile_router(plan: Plan, context: Context) -> dict[str, Profile]:
    """Sample the stacks of a router, by setting."""
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
