"""Endpoint sources without a registry: lists, and DNS names with many addresses."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

from flyserve.core.endpoints import Endpoint, Snapshot
from flyserve.core.messages import Role
from services.common.endpoint_sources import (
    RESOLVE_INTERVAL_S,
    ListedEndpointSource,
    resolve_addresses,
)
from tests.support.clock import VirtualClock


class Names:
    """A name service that the test changes."""

    def __init__(self, *addresses: str) -> None:
        self.addresses: set[str] | None = set(addresses)
        self.num_resolved = 0

    async def resolve(self, name: str) -> set[str]:
        assert name == "targets.example"
        self.num_resolved += 1
        if self.addresses is None:
            raise OSError(1, "no such name")
        return self.addresses


class Watched:
    """The snapshots of a source, on a clock that the test advances."""

    def __init__(self, names: Names) -> None:
        self.clock = VirtualClock()
        self.snapshots: list[Snapshot] = []
        entries = {Role.TARGET: ["dns:targets.example:50100", "10.0.0.9:1"]}
        self.source = ListedEndpointSource(entries, self.clock, names.resolve)

    async def follow(self) -> None:
        async with aclosing(self.source.watch()) as snapshots:
            async for snapshot in snapshots:
                self.snapshots.append(snapshot)

    async def resolve_again(self) -> list[list[str]]:
        """Return the addresses of every snapshot so far, after the next resolution."""
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


async def test_a_name_is_resolved_repeatedly_and_only_changes_are_reported() -> None:
    names = Names("10.0.0.2", "10.0.0.1")
    async with watching(names) as watched:
        first = ["10.0.0.1:50100", "10.0.0.2:50100", "10.0.0.9:1"]
        assert await watched.resolve_again() == [first]
        assert await watched.resolve_again() == [first]
        assert names.num_resolved >= 2
        names.addresses = {"10.0.0.3"}
        second = ["10.0.0.3:50100", "10.0.0.9:1"]
        assert await watched.resolve_again() == [first, second]
        assert [snapshot.generation for snapshot in watched.snapshots] == [1, 2]


async def test_while_a_name_cannot_be_resolved_its_last_addresses_stay_in_use() -> None:
    names = Names("10.0.0.1")
    async with watching(names) as watched:
        first = ["10.0.0.1:50100", "10.0.0.9:1"]
        assert await watched.resolve_again() == [first]
        names.addresses = None
        assert await watched.resolve_again() == [first]
        names.addresses = {"10.0.0.4"}
        assert await watched.resolve_again() == [first, ["10.0.0.4:50100", "10.0.0.9:1"]]


async def test_a_name_that_none_can_have_leaves_the_others_in_use() -> None:
    source = ListedEndpointSource({Role.TARGET: ["dns:a..b:1", "h:1"]}, VirtualClock())
    async with aclosing(source.watch()) as snapshots:
        assert [endpoint.address for endpoint in (await anext(snapshots)).endpoints] == ["h:1"]


async def test_resolved_addresses_can_be_followed_by_a_port() -> None:
    assert await resolve_addresses("127.0.0.1") == {"127.0.0.1"}
    assert await resolve_addresses("::1") == {"[::1]"}


async def test_a_list_without_names_is_static() -> None:
    source = ListedEndpointSource({Role.TARGET: ["h:1"]}, VirtualClock())
    endpoint = Endpoint(Role.TARGET, "h:1", "h:1")
    assert [snapshot async for snapshot in source.watch()] == [Snapshot(1, (endpoint,))]
    assert source.is_static
    assert not ListedEndpointSource({Role.TARGET: ["dns:h:1"]}, VirtualClock()).is_static
