"""Replicas and routers on one dilated clock, all in one event loop."""

from contextlib import AsyncExitStack

from prometheus_client import CollectorRegistry

from benchmarks.harness.system import DEMO_MODELS, serving
from benchmarks.scenarios.capacity.hardware import Replica
from benchmarks.scenarios.capacity.plan import Deployment
from flyserve.core.clock import SystemClock
from flyserve.core.messages import Role
from router.config import RouterConfig
from router.server import create_host
from services.common.telemetry.process import Telemetry
from services.drafter.ahead import DraftingLimits
from services.drafter.servicer import host_engine as host_drafter
from services.drafter.sub_drafters import SubDrafters
from services.engine.config import ModelSection
from services.engine.simulation.clock_engine import ClockEngine
from services.engine.simulation.language import SimulatedConfig
from services.engine.simulation.runner import SimulatedRunner
from services.target.servicer import host_engine as host_target

_STEPS = "flyserve_step_seconds_sum"
_MAX_BATCH_TOKENS = 1024
"""Token rows of one forward; a chunk of a prefill has at most half as many."""
_STEP_TIMEOUT_S, _PROBE_S, _PROBE_TIMEOUT_S = 120.0, 2.0, 10.0
"""Timeouts of the router in simulated seconds: it gives no verdict on replicas whose clock is slow."""
_START_S, _CONNECTION_AGE_S = 240.0, 86400.0


class PacedClock(SystemClock):
    """A dilated clock that measures how late its sleepers woke.

    Attributes:
        asked_s: Requested sleep, on this clock.
        late_s: Total delay with which the sleepers woke.
    """

    def __init__(self, dilation: float) -> None:
        super().__init__(dilation)
        self.asked_s = self.late_s = 0.0

    async def sleep(self, seconds: float) -> None:
        started = self.now()
        await super().sleep(seconds)
        self.asked_s += seconds
        self.late_s += self.now() - started - seconds


class Hosts:
    """The replicas and routers of one deployment.

    Attributes:
        addresses: Addresses of its routers.
    """

    def __init__(self, stack: AsyncExitStack, deployment: Deployment, dilation: float) -> None:
        """Use a stack whose end stops all hosts; their calls end at once."""
        self.deployment, self.addresses = deployment, list[str]()
        self._stack, self._dilation, self._clock = stack, dilation, PacedClock(dilation)
        self._registries: list[tuple[Role, CollectorRegistry]] = []

    async def start(
        self, target: Replica, target_model: SimulatedConfig, drafter: Replica, drafter_model: SimulatedConfig
    ) -> None:
        """Start replicas of both models, each with room for all streams, and the routers."""
        own, replicas = self.deployment, self._replica
        targets = [await replicas(Role.TARGET, target, target_model) for _ in range(own.targets)]
        drafters = [await replicas(Role.DRAFTER, drafter, drafter_model) for _ in range(own.drafters)]
        for _ in range(own.routers):
            host = await create_host(self._router_config(targets, drafters), self._clock)
            self.addresses.append(await self._stack.enter_async_context(serving(host)))

    def counters(self) -> tuple[float, float, float]:
        """Return the cost of all forwards and the time they took beyond it (simulated s), and real step s."""
        steps = (each.get_sample_value(_STEPS, {"role": role.value}) for role, each in self._registries)
        return self._clock.asked_s, self._clock.late_s, sum(filter(None, steps))

    async def _replica(self, role: Role, replica: Replica, model: SimulatedConfig) -> str:
        streams = self.deployment.streams
        runner = SimulatedRunner(model, role, streams, replica.kv_tokens)
        limits = ModelSection(max_batch_tokens=_MAX_BATCH_TOKENS, max_queued=streams)
        engine, telemetry = ClockEngine(runner, self._clock, limits), Telemetry()
        await engine.start()
        telemetry.registry = CollectorRegistry()
        self._registries.append((role, telemetry.registry))
        if role is Role.TARGET:
            host = host_target(engine, telemetry=telemetry)
        else:
            host = host_drafter(engine, SubDrafters(None), DraftingLimits(ahead_sequences=0), telemetry)
        return await self._stack.enter_async_context(serving(host))

    def _router_config(self, targets: list[str], drafters: list[str]) -> RouterConfig:
        dilation = self._dilation
        return RouterConfig(
            model=DEMO_MODELS / "target",
            grpc_port=0,
            targets=tuple(targets),
            drafters=tuple(drafters),
            max_concurrent=self.deployment.streams,
            verify_timeout_s=_STEP_TIMEOUT_S * dilation,
            draft_timeout_s=_STEP_TIMEOUT_S * dilation,
            write_timeout_s=_STEP_TIMEOUT_S * dilation,
            probe_interval_s=_PROBE_S * dilation,
            probe_timeout_s=_PROBE_TIMEOUT_S * dilation,
            max_connection_age_s=_CONNECTION_AGE_S,
            start_timeout_s=_START_S,
        )
