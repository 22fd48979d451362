import socket
from contextlib import ExitStack, closing
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry

from flyserve.core.errors import ConfigError
from services.common.telemetry.process import MetricsServer


def test_the_first_free_port_of_several_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held, ExitStack() as stack:
        taken = held.getsockname()[1]
        servers = [
            stack.enter_context(closing(MetricsServer(CollectorRegistry(), "127.0.0.1", taken, 20)))
            for _ in range(2)
        ]
        ports = [int(server.address.rpartition(":")[2]) for server in servers]
        assert taken < ports[0] < ports[1] < taken + 20
        for server in servers:
            assert urlopen(f"http://{server.address}/metrics").status == 200


def test_no_free_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        taken = held.getsockname()[1]
        with pytest.raises(ConfigError, match=f"telemetry.metrics_port: 127.0.0.1:{taken} cannot be bound"):
            MetricsServer(CollectorRegistry(), "127.0.0.1", taken)
