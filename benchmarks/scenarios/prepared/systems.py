"""The pairs behind routers: as services, or with the tokens of one pair and the times of another."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

from benchmarks.harness.client import Prompts, demo_prompts, random_prompts
from benchmarks.harness.system import DEMO_MODELS
from benchmarks.scenarios.acceleration.workloads import (
    NON_REPEATING,
    Drafting,
    SubDrafting,
    aligned_models,
    aligned_recipe,
    demo_models,
    running_drafters,
)
from benchmarks.scenarios.peers.in_process import load
from benchmarks.scenarios.prepared.plan import DEMO, NOTHING, SIMULATED, Plan, Way
from benchmarks.scenarios.simulate.hosts import Hosts
from benchmarks.scenarios.simulate.plan import Plan as SimulatePlan
from fly.clock import Clock
from fly.messages import VERIFIED_TOKENS, ForwardCosts, Role
from flyserve.client import Client
from router.config import RouterConfig
from router.server import create_host
from services.common.host import Host
from services.drafter.ahead import DraftingLimits
from services.drafter.servicer import host_engine as host_drafter
from services.drafter.sub_drafters import SubDrafters
from services.engine.base import DelegatedMemoryStats, ForwardInput, Runner
from services.engine.engine import Engine
from services.engine.simulation.clock_engine import ClockEngine, TimedRunner
from services.engine.simulation.runner import SimulatedConfig
from services.target.servicer import host_engine as host_target

Clients = Mapping[Way, Client]
_SEQUENCES = 8


@contextmanager
def running(part: str, plan: Plan) -> Iterator[tuple[Clients, Prompts]]:
    """Yield a client for each way of drafting, in front of one target, and the prompts."""
    if part == SIMULATED:
        with _retimed(plan) as clients:
            yield clients, demo_prompts(plan.simulated_prompts)
        return
    if part == DEMO:
        models, prompts = demo_models(), demo_prompts(plan.prompts)
    else:
        recipe = aligned_recipe(NON_REPEATING)
        models = aligned_models(recipe)
        prompts = random_prompts(range(recipe.vocab_size), plan.aligned_prompts)
    ways = {way: Drafting(SubDrafting.OFF, way != NOTHING, max(1, way.outcomes)) for way in plan.ways}
    with running_drafters(models, tuple(ways.values())) as clients:
        yield {way: clients[drafting] for way, drafting in ways.items()}, prompts


class RetimedRunner(DelegatedMemoryStats):
    """A `TimedRunner` that computes with one model and takes the simulated time of another one."""

    def __init__(self, runner: Runner, config: SimulatedConfig) -> None:
        super().__init__(runner)
        self._runner, self._config = runner, config
        costs = ForwardCosts(config.forward_s(1, 1), config.forward_s(1, VERIFIED_TOKENS))
        self.info = replace(runner.info, costs=costs)
        self.forward = runner.forward
        self.allocate, self.resize = runner.allocate, runner.resize
        self.copy_prefix, self.retire, self.free = runner.copy_prefix, runner.retire, runner.free

    def forward_s(self, batch: Sequence[ForwardInput]) -> float:
        return self._config.forward_s(len(batch), sum(len(item.tokens) for item in batch))


@contextmanager
def _retimed(plan: Plan) -> Iterator[Clients]:
    """Yield clients of the demo pair with the forward times of Llama 70B and 8B, in dilated time."""
    models = SimulatePlan().models
    with ExitStack() as stack:
        hosts = Hosts(plan.dilation)
        stack.callback(hosts.stop)

        async def target(clock: Clock) -> Host:
            return host_target(
                await _started(DEMO_MODELS / "target", Role.TARGET, models.target_model, clock)
            )

        async def drafter(way: Way, clock: Clock) -> Host:
            engine = await _started(DEMO_MODELS / "drafter", Role.DRAFTER, models.drafter_model, clock)
            limits = DraftingLimits(
                ahead_sequences=0 if way == NOTHING else _SEQUENCES, branches=max(0, way.outcomes - 1)
            )
            return host_drafter(engine, SubDrafters(None), limits)

        verifier, clients = hosts.start(target), dict[Way, Client]()
        for way in plan.ways:
            drafters = [hosts.start(lambda clock, way=way: drafter(way, clock))]  # type: ignore[misc]
            config = RouterConfig(
                model=DEMO_MODELS / "target", grpc_port=0, targets=[verifier], drafters=drafters
            )
            address = hosts.start(lambda clock, config=config: create_host(config, clock))  # type: ignore[misc]
            clients[way] = stack.enter_context(Client(address))
        yield clients


async def _started(folder: Path, role: Role, config: SimulatedConfig, clock: Clock) -> Engine:
    runner = load(folder, role, "float32", _SEQUENCES)
    engine = ClockEngine(cast(TimedRunner, RetimedRunner(runner, config)), clock)
    await engine.start()
    return engine
