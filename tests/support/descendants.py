"""Processes that this one has started, and theirs. Ray ends idle ones at any time: these are passed over."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import psutil


def listeners(processes: Iterable[psutil.Process]) -> Iterator[tuple[psutil.Process, str, Any]]:
    """Yield processes that listen, each with its name, and the IP address and port of a socket."""
    for process in processes:
        with suppress(psutil.Error):
            name = process.name()
            for socket in process.net_connections("inet"):
                if socket.status == psutil.CONN_LISTEN:
                    yield process, name, socket.laddr


def listener_at(address: str) -> psutil.Process:
    """Return the descendant that listens at the port of `address`."""
    port = int(address.rpartition(":")[2])
    for process, _, place in listeners(psutil.Process().children(recursive=True)):
        if place.port == port:
            return process
    raise AssertionError(f"nothing listens at {address}")


def titled(title: str) -> list[psutil.Process]:
    """Return the descendants whose title begins with this; Ray gives actors `ray::` and their class."""
    found = list[psutil.Process]()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if any(part.startswith(title) for part in (process.name(), *process.cmdline())):
                found.append(process)
    return found
