"""The ports of a deployment on this machine."""

from flyserve.core.errors import ConfigError
from orchestration.deployment.file import METRICS_PORTS_PER_TIER, Deployment
from orchestration.deployment.plan import metrics_port
from services.common.addresses import bind_fault, shared_port_fault


def require_free_ports(deployment: Deployment) -> None:
    """Check the ports before anything is started; the router fails by itself if one is taken later.

    Raises:
        ConfigError: A port is in use or has two uses, or the interface is not one of this machine.
    """
    ports, host = deployment.router_ports, deployment.router.host
    if fault := shared_port_fault({**ports, **_other_ports(deployment)}):
        raise ConfigError(fault)
    for key, port in ports.items():
        if port is not None and (fault := bind_fault(host, port)):
            raise ConfigError(
                f"{key}: {host}:{port} cannot be bound: {fault};"
                " stop the process that listens there, or choose another port; 0 takes a free one"
            )


def _other_ports(deployment: Deployment) -> dict[str, int | None]:
    """Return the ports that are taken before the router starts, by their keys."""
    replicas = {
        f"telemetry.metrics_port of {role}-{index}": metrics_port(deployment.telemetry, role, index)
        for role, tier in deployment.tiers.items()
        for index in range(min(tier.replicas, METRICS_PORTS_PER_TIER))
    }
    return {"controller.port": deployment.controller.port, **replicas}
