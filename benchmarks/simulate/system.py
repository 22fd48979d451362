"""The processes of a deployment: some share its targets and drafters, others its routers."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from benchmarks.paths import DEMO_MODELS, ROOT
from benchmarks.simulate.pace import Sample, read_samples
from benchmarks.simulate.plan import Deployment, Models
from benchmarks.simulate.worker import ServiceSpec, WorkerSpec
from fly.messages import Role
from orchestration.local.processes import ServiceProcess, service_process
from router.config import RouterConfig

_START_S, _GRACE_S = 240.0, 20.0
_WORKER = "benchmarks.simulate.worker"
_PATIENCE_S = 120.0
"""Simulated seconds that a router waits for one step, and for a client that takes nothing."""
_PROBE_S, _PROBE_TIMEOUT_S = 2.0, 10.0
"""Simulated seconds."""
_TARGETS_PER_PROCESS = 32
_CONNECTION_AGE_S = 86400.0


@dataclass(frozen=True, slots=True)
class Worker:
    """A running process and the file that its samples are in."""

    process: ServiceProcess
    file: Path

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of its hosts."""
        return (self.process.address, *self.process.urls)

    def samples(self) -> list[Sample]:
        """Up to now."""
        return read_samples(self.file)


@dataclass(frozen=True, slots=True)
class Running:
    """A deployment that serves.

    Attributes:
        services: The processes of its targets and drafters.
        routers: The processes of its routers.
    """

    deployment: Deployment
    services: tuple[Worker, ...]
    routers: tuple[Worker, ...]

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of all routers."""
        return tuple(address for worker in self.routers for address in worker.addresses)


@contextmanager
def running(deployment: Deployment, models: Models, dilation: float) -> Iterator[Running]:
    """Starts everything; it runs while the block does.

    Raises:
        ConfigError: A process ended, with its last line.
        NotReady: One did not serve in time.
    """
    count = -(-deployment.targets // _TARGETS_PER_PROCESS)
    with TemporaryDirectory(prefix="flyserve-") as folder, ExitStack() as stack:

        def start(name: str, spec: WorkerSpec) -> Worker:
            return stack.enter_context(_worker(Path(folder) / name, spec))

        tiers: dict[Role, list[str]] = {Role.TARGET: [], Role.DRAFTER: []}
        services = []
        for index in range(count):
            specs = _services(deployment, models, index, count)
            worker = start(f"services{index}", WorkerSpec(dilation=dilation, services=specs))
            services.append(worker)
            addresses = iter(worker.addresses)
            for spec in specs:
                tiers[spec.role] += [next(addresses) for _ in range(spec.number)]
        config = _router(deployment, tiers, dilation)
        routers = [
            start(f"routers{index}", WorkerSpec(dilation=dilation, routers=(config,) * number))
            for index, number in enumerate(_shares(deployment.routers, count))
        ]
        yield Running(deployment, tuple(services), tuple(routers))


@contextmanager
def _worker(folder: Path, spec: WorkerSpec) -> Iterator[Worker]:
    folder.mkdir()
    file, samples = folder / "spec.yaml", folder / "samples.jsonl"
    told = spec.model_dump(mode="json", exclude_none=True) | {"samples": str(samples)}
    file.write_text(yaml.safe_dump(told), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with service_process((_WORKER, str(file)), environment, folder, _START_S, _GRACE_S) as process:
        yield Worker(process, samples)


def _services(deployment: Deployment, models: Models, index: int, count: int) -> tuple[ServiceSpec, ...]:
    """What one of so many processes hosts."""
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


def _router(deployment: Deployment, tiers: dict[Role, list[str]], dilation: float) -> RouterConfig:
    """Waits for nothing that is only slow because its clock is."""
    return RouterConfig(
        model=DEMO_MODELS / "target",
        grpc_port=0,
        targets=tuple(tiers[Role.TARGET]),
        drafters=tuple(tiers[Role.DRAFTER]),
        max_concurrent=deployment.streams,
        verify_timeout_s=_PATIENCE_S * dilation,
        draft_timeout_s=_PATIENCE_S * dilation,
        write_timeout_s=_PATIENCE_S * dilation,
        probe_interval_s=_PROBE_S * dilation,
        probe_timeout_s=_PROBE_TIMEOUT_S * dilation,
        max_connection_age_s=_CONNECTION_AGE_S,
        start_timeout_s=_START_S,
    )


def _shares(total: int, count: int) -> Sequence[int]:
    """As even as can be."""
    return [total // count + (index < total % count) for index in range(count)]
