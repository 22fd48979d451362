"""The process group of one replica: its ranks meet, load, and pass plans on."""

import contextlib
import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore

from fly.errors import ModelError
from services.engine.base import RunnerLost
from services.engine.config import Sharding, StartFollowers

LEADER = 0
_HOST = "127.0.0.1"
"""All ranks are on one node: neither their rendezvous nor gloo listens anywhere else."""
_FRAME = 1024
"""Integers of a plan's first broadcast; what does not fit follows in a second one."""


class ShardGroup:
    """One rank's membership; a process is in one group at most.

    NOTE: collectives must be the same on every rank, in the same order: only a plan starts one.
    """

    def __init__(self, store: Store, rank: int, sharding: Sharding, device: str) -> None:
        """Waits until all ranks are there.

        Raises:
            ModelError: They were not in time.
        """
        self.rank = rank
        self.sharding = sharding
        os.environ["GLOO_SOCKET_IFNAME"] = _loopback()
        timeout = timedelta(seconds=sharding.group_timeout_s)
        backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
        _meet(store, rank, sharding)
        dist.init_process_group(backend, store=store, rank=rank, world_size=sharding.shards, timeout=timeout)
        # NOTE: of its own, so that plans are plain CPU tensors on every device.
        self._plans = dist.new_group(backend="gloo", timeout=timeout)

    @classmethod
    def lead(cls, sharding: Sharding, start_followers: StartFollowers, device: str = "cpu") -> "ShardGroup":
        """A group on a fresh port, with this process as its first rank."""
        with socket.create_server((_HOST, 0)) as server:
            port = server.getsockname()[1]
            store = _store(sharding, port, is_master=True, master_listen_fd=server.detach())
        start_followers(port)
        return cls(store, LEADER, sharding, device)

    @classmethod
    def join(cls, sharding: Sharding, rank: int, port: int, device: str = "cpu") -> "ShardGroup":
        """The group whose rendezvous listens at `port`."""
        return cls(_store(sharding, port, is_master=False), rank, sharding, device)

    def wait_for_all(self) -> None:
        """Returns once every rank has got here.

        Raises:
            ModelError: One has not in time.
        """
        try:
            dist.monitored_barrier(self._plans, timedelta(seconds=self.sharding.group_start_timeout_s))
        except RuntimeError as error:
            raise ModelError(_absent(self.sharding, "loaded", error)) from error

    def send(self, values: list[int]) -> None:
        """Tells the followers; returns before they have heard.

        Raises:
            RunnerLost: The group is broken.
        """
        message = torch.tensor([len(values), *values])
        frame = torch.zeros(_FRAME, dtype=torch.long)
        frame[: len(message)] = message[:_FRAME]
        self._broadcast(frame)
        if len(message) > _FRAME:
            self._broadcast(message[_FRAME:])

    def receive(self) -> list[int]:
        """What the leader tells next.

        Raises:
            RunnerLost: The group is broken, or the leader said nothing within the timeout.
        """
        frame = torch.zeros(_FRAME, dtype=torch.long)
        self._broadcast(frame)
        length, *values = frame.tolist()
        if length + 1 > _FRAME:
            rest = torch.zeros(length + 1 - _FRAME, dtype=torch.long)
            self._broadcast(rest)
            values += rest.tolist()
        return values[:length]

    @contextlib.contextmanager
    def left_on_error(self) -> Iterator[None]:
        """Leaves the group where the block fails, so that the other ranks fail as well, and at once.

        Raises:
            RunnerLost: Instead of what torch raises when a rank is lost.
        """
        try:
            yield
        except BaseException as error:
            self.leave()
            if isinstance(error, RuntimeError) and not isinstance(error, RunnerLost):
                raise RunnerLost(f"rank {self.rank} has lost its group: {_first_line(error)}") from error
            raise

    def leave(self) -> None:
        """Closes its connections; without the last plan, the others take it for lost."""
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()

    def _broadcast(self, tensor: torch.Tensor) -> None:
        try:
            dist.broadcast(tensor, LEADER, self._plans)
        except RuntimeError as error:
            raise RunnerLost(f"rank {self.rank} has lost its group: {_first_line(error)}") from error


def _store(sharding: Sharding, port: int, is_master: bool, **more: Any) -> TCPStore:
    timeout = timedelta(seconds=sharding.group_start_timeout_s)
    try:
        return TCPStore(_HOST, port, sharding.shards, is_master, timeout, wait_for_workers=False, **more)
    except RuntimeError as error:
        raise ModelError(_absent(sharding, "met", error)) from error


def _meet(store: Store, rank: int, sharding: Sharding) -> None:
    """Waits for all ranks: the group's own timeout is too short for processes that are still starting."""
    try:
        store.set(f"rank-{rank}", "here")
        everyone = [f"rank-{other}" for other in range(sharding.shards)]
        store.wait(everyone, timedelta(seconds=sharding.group_start_timeout_s))
    except RuntimeError as error:
        raise ModelError(_absent(sharding, "met", error)) from error


def _loopback() -> str:
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name.startswith("lo")), names[0])


def _absent(sharding: Sharding, act: str, error: Exception) -> str:
    return (
        f"shards: {sharding.shards} ranks have not {act} within {sharding.group_start_timeout_s:g} s:"
        f" {_first_line(error)}"
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
