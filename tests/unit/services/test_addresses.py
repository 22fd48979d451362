import socket

import pytest

from flyserve.core.errors import ConfigError
from services.common.addresses import bind_fault, interface_towards


def test_the_interface_towards_loopback_is_loopback() -> None:
    assert interface_towards("127.0.0.1:50052") == "127.0.0.1"
    assert interface_towards("localhost:1") in ("127.0.0.1", "[::1]")


def test_a_registry_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*place: object, **kind: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)  # whatever the resolver of this machine answers
    with pytest.raises(ConfigError, match=r"registry: nowhere\.invalid:7 cannot be reached from here"):
        interface_towards("nowhere.invalid:7")


def test_a_name_that_none_can_have_is_a_fault() -> None:
    assert bind_fault("a..b", 7)
    with pytest.raises(ConfigError, match=r"registry: a\.\.b:7 cannot be reached from here: ."):
        interface_towards("a..b:7")
