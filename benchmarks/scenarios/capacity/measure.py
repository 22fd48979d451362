"""The processes of all placements side by side, on one dilated clock, and their clients."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

import uvloop

from benchmarks.harness.client import speculation
from benchmarks.harness.command import Context
from benchmarks.harness.load import Chunks, Level, cut_window, run_window
from benchmarks.harness.worker import Worker, worker
from benchmarks.scenarios.capacity.plan import CO_LOCATED, PAUSE_S, Found, Levels, Measured, Plan
from benchmarks.scenarios.simulate.hosts import Hosts, Tier
from benchmarks.scenarios.simulate.measure import activity, make_prompts, router_config, shares
from fly.messages import Role
from fly.response import Statistics
from fly.types import Mode
from flyserve import AsyncClient
from flyserve.bench.statistics import mean_tau, share

_SPREAD = 0.6
"""Share of the settling time in which the clients start."""
Running = tuple[Worker, tuple[str, ...]]
"""The process of a placement's targets and drafters, and the addresses of its routers."""


def measure_levels(plan: Plan, context: Context, levels: Levels) -> Found:
    """Measure one number of clients after the other, all placements at once."""
    with ExitStack() as stack, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        systems = {name: _start(stack, plan, name, levels) for name in plan.placements}

        def window(clients: int, turn: int) -> dict[str, Measured]:
            return runner.run(_measure_all(plan, levels, systems, clients, turn))

        return context.interleave("all placements", levels.clients, plan.repeat, window, warm_ups=0)


def _start(stack: ExitStack, plan: Plan, name: str, levels: Levels) -> Running:
    """Start a placement's targets, drafters and routers; co-located pairs have a router each."""

    def hosts() -> Worker:
        made = stack.enter_context(worker(Hosts, levels.dilation))
        stack.callback(made.ask, "stop")
        return made

    services, routers, streams = hosts(), hosts(), max(levels.clients)
    if name == CO_LOCATED:
        target, drafter = _tiers(plan, streams, plan.groups, plan.groups)
        alone = replace(drafter, ahead_sequences=0)
        addresses = services.ask("start_pairs", target, alone, PAUSE_S)
        fleets = [([own], [beside]) for own, beside in zip(*addresses, strict=True)]
    else:
        tiers = _tiers(plan, streams, plan.groups - plan.drafters, plan.drafters)
        targets, drafters = services.ask("start_replicas", tiers)
        if delay_s := plan.placements[name]:
            drafters = [services.ask("start_link", each, delay_s) for each in drafters]
        fleets = [(targets, drafters)]
    configs = (router_config(streams, *fleet, levels.dilation, "least_load") for fleet in fleets)
    return services, tuple(routers.ask("start_routers", config, 1)[0] for config in configs)


def _tiers(plan: Plan, streams: int, targets: int, drafters: int) -> tuple[Tier, Tier]:
    models, rows = plan.models, plan.models.max_batch_tokens
    return (
        Tier(Role.TARGET, models.target_model, targets, streams, models.target.kv_tokens, rows),
        Tier(
            Role.DRAFTER,
            models.drafter_model,
            drafters,
            streams,
            models.drafter.kv_tokens,
            rows,
            plan.ahead_sequences,
        ),
    )


async def _measure_all(
    plan: Plan, levels: Levels, systems: Mapping[str, Running], clients: int, turn: int
) -> dict[str, Measured]:
    measured = (_window(plan, levels, system, clients, turn) for system in systems.values())
    return dict(zip(systems, await asyncio.gather(*measured), strict=True))


async def _window(plan: Plan, levels: Levels, system: Running, clients: int, turn: int) -> Measured:
    """Measure one placement; its clients are shared evenly among its routers, and stay there."""
    services, addresses = system
    settle_s, measure_s = levels.settle_s * levels.dilation, levels.measure_s * levels.dilation
    level = Level(clients, settle_s, measure_s, _SPREAD * settle_s)
    way, prompts = (
        speculation(Mode.FLY, plan.draft_length),
        make_prompts(f"{clients} {turn}", plan.prompt_tokens),
    )

    async def load(address: str, own: int) -> tuple[int, list[Statistics]]:
        async with AsyncClient(address, retries=0) as client:

            def ask(prompt: Sequence[int], max_new_tokens: int) -> Chunks:
                return client.stream(prompt, max_new_tokens, speculation=way)

            streams, begin_s, end_s = await run_window(ask, prompts, replace(level, concurrency=own))
        tokens = cut_window("", own, turn, streams, begin_s, end_s).tokens
        return tokens, [stream.statistics for stream in streams if stream.statistics is not None]

    numbers = zip(addresses, shares(clients, len(addresses)), strict=True)
    loads = (load(address, own) for address, own in numbers if own)
    found, spent = await asyncio.gather(asyncio.gather(*loads), activity((services,), level))
    return Measured(
        tokens_per_s=sum(tokens for tokens, _ in found) / levels.measure_s,
        tau=mean_tau([each for _, ended in found for each in ended]),
        late=share(spent.late_s, spent.asked_s),
        outside=1 - share(spent.verify_s + spent.draft_s, clients * spent.at_s),
    )
