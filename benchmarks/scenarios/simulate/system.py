"""The processes of a deployment: some host its targets and drafters, others its routers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from benchmarks.harness.system import DEMO_MODELS, Service, Services, running_services
from benchmarks.scenarios.simulate.pace import Sample, read_samples
from benchmarks.scenarios.simulate.plan import Deployment, Models
from benchmarks.scenarios.simulate.worker import ServiceSpec, WorkerSpec
from fly.messages import Role
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
