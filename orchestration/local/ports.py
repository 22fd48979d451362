"""The ports of a router on this machine."""

from flyserve.core.errors import ConfigError
from orchestration.deployment.file import RouterTier
from services.common.addresses import bind_fault


def require_free_ports(router: RouterTier) -> None:
    """Check the ports before anything is started; the router fails by itself if one is taken later.

    Raises:
        ConfigError: A port is in use, or the interface is not one of this machine.
    """
    for name, port in (("grpc_port", router.grpc_port), ("http_port", router.http_port)):
        if port is not None and (fault := bind_fault(router.host, port)):
            raise ConfigError(
                f"router.{name}: {router.host}:{port} cannot be bound: {fault};"
                " stop the process that listens there, or choose another port; 0 takes a free one"
            )
