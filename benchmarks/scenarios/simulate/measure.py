"""The processes of deployments side by side, closed-loop clients, and what the processes did meanwhile."""

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from pathlib import Path

import psutil
import uvloop
import yaml

from benchmarks.harness.load import Ask, Chunks, Level, cut_window, run_window, slices
from benchmarks.harness.system import DEMO_MODELS, Service, Services, running_services
from benchmarks.scenarios.simulate.figures import SLICES, MachineUse, Measured
from benchmarks.scenarios.simulate.pace import Sample, between, read_samples
from benchmarks.scenarios.simulate.plan import LANGUAGE, SETTINGS, Deployment, Models, Plan, Stage
from benchmarks.scenarios.simulate.worker import ServiceSpec, WorkerSpec
from fly.messages import Role
from flyserve import AsyncClient
from flyserve.bench.progress import Advance
from flyserve.bench.statistics import mean_tau
from router.config import RouterConfig

_STEP_TIMEOUT_S, _PROBE_S, _PROBE_TIMEOUT_S = 120.0, 2.0, 10.0
"""Timeouts of the router in simulated seconds: it gives no verdict on replicas whose clock is slow."""
_START_S, _CONNECTION_AGE_S = 240.0, 86400.0
_TARGETS_PER_PROCESS = 32


@dataclass(frozen=True, slots=True)
class Worker:
    """A running process, and the file of its samples."""

    service: Service
    file: Path

    def samples(self) -> list[Sample]:
        """Return the samples so far."""
        return read_samples(self.file)


@dataclass(frozen=True, slots=True)
class Running:
    """A running deployment.

    Attributes:
        services: Processes of its targets and drafters.
        routers: Processes of its routers.
    """

    deployment: Deployment
    services: tuple[Worker, ...]
    routers: tuple[Worker, ...]

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of all routers."""
        return tuple(address for worker in self.routers for address in worker.service.addresses)


@contextmanager
def running(deployment: Deployment, models: Models, dilation: float) -> Iterator[Running]:
    """Start all processes; they run while the block does.

    Raises:
        ConfigError: A process ended; the error has its last line.
        NotReady: A process did not serve in time.
    """
    count = -(-deployment.targets // _TARGETS_PER_PROCESS)
    with running_services() as started:
        tiers: dict[Role, list[str]] = {Role.TARGET: [], Role.DRAFTER: []}
        services = []
        for index in range(count):
            specs = _service_specs(deployment, models, index, count)
            worker = _start(started, WorkerSpec(dilation=dilation, services=specs))
            services.append(worker)
            addresses = iter(worker.service.addresses)
            for spec in specs:
                tiers[spec.role] += [next(addresses) for _ in range(spec.number)]
        config = _router_config(deployment, tiers, dilation)
        routers = [
            _start(started, WorkerSpec(dilation=dilation, routers=(config,) * number))
            for number in _shares(deployment.routers, count)
        ]
        yield Running(deployment, tuple(services), tuple(routers))


def _start(services: Services, spec: WorkerSpec) -> Worker:
    folder = services.new_folder("spec")
    file, samples = folder / "spec.yaml", folder / "samples.jsonl"
    data = spec.model_dump(mode="json", exclude_none=True) | {"samples": str(samples)}
    file.write_text(yaml.safe_dump(data), encoding="utf-8")
    return Worker(services.start("benchmarks.scenarios.simulate.worker", str(file)), samples)


def _service_specs(deployment: Deployment, models: Models, index: int, count: int) -> tuple[ServiceSpec, ...]:
    """Return the tiers of one of `count` processes."""
    tiers = (
        (Role.TARGET, models.target_model, models.target.kv_tokens, deployment.targets),
        (Role.DRAFTER, models.drafter_model, models.drafter.kv_tokens, deployment.drafters),
    )
    return tuple(
        ServiceSpec(
            role=role,
            model=model,
            number=_shares(total, count)[index],
            max_sequences=deployment.streams,
            kv_tokens=kv_tokens,
            max_batch_tokens=models.max_batch_tokens,
        )
        for role, model, kv_tokens, total in tiers
    )


def _router_config(deployment: Deployment, tiers: dict[Role, list[str]], dilation: float) -> RouterConfig:
    return RouterConfig(
        model=DEMO_MODELS / "target",
        grpc_port=0,
        targets=tuple(tiers[Role.TARGET]),
        drafters=tuple(tiers[Role.DRAFTER]),
        max_concurrent=deployment.streams,
        verify_timeout_s=_STEP_TIMEOUT_S * dilation,
        draft_timeout_s=_STEP_TIMEOUT_S * dilation,
        write_timeout_s=_STEP_TIMEOUT_S * dilation,
        probe_interval_s=_PROBE_S * dilation,
        probe_timeout_s=_PROBE_TIMEOUT_S * dilation,
        max_connection_age_s=_CONNECTION_AGE_S,
        start_timeout_s=_START_S,
    )


def _shares(total: int, count: int) -> Sequence[int]:
    """Split a total into `count` parts that differ by at most one."""
    return [total // count + (index < total % count) for index in range(count)]


_SPREAD = 0.6
"""Share of the settling time in which the clients start."""


def measure_stage(plan: Plan, stage: Stage, advance: Advance) -> list[Measured]:
    """Measure every deployment of a stage under every setting; call `advance` after each setting.

    Raises:
        FlyServeError: A process could not be started, or a request failed.
    """
    with ExitStack() as stack, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        systems = [
            stack.enter_context(running(deployment, plan.models, stage.dilation))
            for deployment in stage.deployments
        ]
        found = []
        for setting in stage.settings:
            found += runner.run(_measure_all(plan, stage, systems, setting))
            advance()
        return found


async def _measure_all(plan: Plan, stage: Stage, systems: Sequence[Running], setting: str) -> list[Measured]:
    """Measure all deployments at once, each with its own clients."""
    watch = asyncio.create_task(_watch_machine(plan, stage))
    found = await asyncio.gather(*(_measure(plan, stage, system, setting) for system in systems))
    machine = await watch
    return [make(machine=machine) for make in found]


async def _measure(plan: Plan, stage: Stage, system: Running, setting: str) -> Callable[..., Measured]:
    """Return the measurement of one deployment, except for the use of the whole machine."""
    deployment, dilation = system.deployment, stage.dilation
    settle_s, measure_s = plan.settle_s * dilation, plan.measure_s * dilation
    level = Level(deployment.streams, settle_s, measure_s, _SPREAD * settle_s)
    prompts = _prompts(f"{deployment} {setting}", plan.prompt_tokens)
    async with AsyncExitStack() as held:
        clients = [
            await held.enter_async_context(AsyncClient(address, retries=0)) for address in system.addresses
        ]
        streams, begin_s, end_s = await run_window(_ask(clients, setting), prompts, level)
    return partial(
        Measured,
        deployment=deployment,
        models=plan.models,
        setting=setting,
        dilation=dilation,
        window=cut_window(setting, deployment.streams, 0, streams, begin_s, end_s),
        slices=slices(streams, begin_s, end_s, SLICES),
        tau=mean_tau([stream.statistics for stream in streams if stream.statistics is not None]),
        services=_activity(system.services, begin_s, end_s),
        routers=_activity(system.routers, begin_s, end_s),
    )


async def _watch_machine(plan: Plan, stage: Stage) -> MachineUse:
    """Return the use of the machine during the window."""
    await asyncio.sleep(plan.settle_s * stage.dilation)
    psutil.cpu_percent()
    clients_s = time.process_time()
    await asyncio.sleep(plan.measure_s * stage.dilation)
    return MachineUse(psutil.cpu_percent() / 100, time.process_time() - clients_s)


def _activity(workers: Sequence[Worker], begin_s: float, end_s: float) -> Sample:
    return reduce(add, (between(worker.samples(), begin_s, end_s) for worker in workers))


def _ask(clients: Sequence[AsyncClient], setting: str) -> Ask:
    """Return a function that sends requests to one router after the other."""
    turns, way = itertools.cycle(clients), SETTINGS[setting]

    def ask(prompt: Sequence[int], max_new_tokens: int) -> Chunks:
        return next(turns).stream(prompt, max_new_tokens, speculation=way)

    return ask


def _prompts(seed: str, num_tokens: int) -> Iterator[Sequence[int]]:
    source, words = random.Random(seed), range(LANGUAGE.first_word, LANGUAGE.vocab_size)
    while True:
        yield source.choices(words, k=num_tokens)
