"""Where replicas are found without a registry: lists, and names of many addresses."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

from fly.clock import VirtualClock
from fly.messages import Role, Snapshot
from services.common.endpoint_sources import (
    RESOLVE_INTERVAL_S,
    DnsEndpointSource,
    StaticEndpointSource,
    configured_endpoints,
    resolve_addresses,
)


class Names:
    """A name service that the test changes."""

    def __init__(self, *addresses: str) -> None:
        self.addresses: set[str] | None = set(addresses)
        self.asked = 0

    async def resolve(self, name: str) -> set[str]:
        assert name == "targets.example"
        self.asked += 1
        if self.addresses is None:
            raise OSError(1, "no such name")
        return self.addresses


class Watched:
    """Every snapshot so far, on a clock that the test moves."""

    def __init__(self, names: Names) -> None:
        self.clock = VirtualClock()
        self.snapshots: list[Snapshot] = []
        entries = {Role.TARGET: ["dns:targets.example:50100", "10.0.0.9:1"]}
        self.source = DnsEndpointSource(entries, self.clock, names.resolve)

    async def follow(self) -> None:
        async with aclosing(self.source.watch()) as snapshots:
            async for snapshot in snapshots:
                self.snapshots.append(snapshot)

    async def look_again(self) -> list[list[str]]:
        """Addresses of every snapshot so far, after the next look-up."""
        for _ in range(20):
            await asyncio.sleep(0)
        self.clock.advance(RESOLVE_INTERVAL_S)
        for _ in range(20):
            await asyncio.sleep(0)
        return [[endpoint.address for endpoint in snapshot.endpoints] for snapshot in self.snapshots]


@asynccontextmanager
async def watching(names: Names) -> AsyncIterator[Watched]:
    watched = Watched(names)
    task = asyncio.create_task(watched.follow())
    yield watched
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_name_is_looked_up_again_and_only_changes_are_told() -> None:
    names = Names("10.0.0.2", "10.0.0.1")
    async with watching(names) as watched:
        first = ["10.0.0.1:50100", "10.0.0.2:50100", "10.0.0.9:1"]
        assert await watched.look_again() == [first]
        assert await watched.look_again() == [first]
        assert names.asked >= 2
        names.addresses = {"10.0.0.3"}
        second = ["10.0.0.3:50100", "10.0.0.9:1"]
        assert await watched.look_again() == [first, second]
        assert [snapshot.generation for snapshot in watched.snapshots] == [1, 2]


async def test_while_a_name_cannot_be_looked_up_its_last_addresses_hold() -> None:
    names = Names("10.0.0.1")
    async with watching(names) as watched:
        first = ["10.0.0.1:50100", "10.0.0.9:1"]
        assert await watched.look_again() == [first]
        names.addresses = None
        assert await watched.look_again() == [first]
        names.addresses = {"10.0.0.4"}
        assert await watched.look_again() == [first, ["10.0.0.4:50100", "10.0.0.9:1"]]


async def test_the_systems_names_are_addresses_with_a_place_for_the_port() -> None:
    assert await resolve_addresses("127.0.0.1") == {"127.0.0.1"}
    assert await resolve_addresses("::1") == {"[::1]"}


def test_a_list_without_names_is_told_once() -> None:
    assert isinstance(configured_endpoints({Role.TARGET: ["h:1"]}, VirtualClock()), StaticEndpointSource)
    assert not configured_endpoints({Role.TARGET: ["dns:h:1"]}, VirtualClock()).is_static
