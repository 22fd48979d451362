"""The process group of one sharded replica: rendezvous, barrier after loading, broadcast of plans."""

import contextlib
import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore

from flyserve.core.errors import ModelError
from services.engine.base import RunnerLost
from services.engine.config import HEARTBEATS_PER_TIMEOUT, Sharding, StartFollowers
from services.engine.loading.device import take_gpu

LEADER = 0
_HOST = "127.0.0.1"
"""All ranks are on one node: the rendezvous, gloo and NCCL listen on loopback only."""
_FRAME = 1024
"""Integers of a plan's first broadcast; the rest follows in a second one."""


class ShardGroup:
    """One rank's membership; a process can be in one group only.

    NOTE: all ranks must call the same collectives in the same order, so only a plan may start one.
    """

    def __init__(self, store: Store, rank: int, sharding: Sharding, device: str) -> None:
        """Wait until all ranks have joined.

        Raises:
            ModelError: A rank has not joined within `start_timeout_s`.
        """
        self.rank = rank
        self.sharding = sharding
        self._store = store
        self._device = torch.device(device)
        names = [name for _, name in socket.if_nameindex()]
        loopback = next((name for name in names if name.startswith("lo")), names[0])
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = loopback
        timeout = timedelta(seconds=sharding.group_timeout_s)
        backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
        gpu = "" if device == "cpu" else take_gpu(rank, sharding.shards)
        join_all(store, rank, sharding, gpu)
        dist.init_process_group(backend, store=store, rank=rank, world_size=sharding.shards, timeout=timeout)
        # NOTE: a separate group, so that plans are plain CPU tensors on every device.
        self._plans = dist.new_group(backend="gloo", timeout=timeout)

    @classmethod
    def lead(cls, sharding: Sharding, start_followers: StartFollowers, device: str = "cpu") -> "ShardGroup":
        """Create a group on a free port, with this process as rank 0, and start the followers."""
        with socket.create_server((_HOST, 0)) as server:
            port = server.getsockname()[1]
            store = _store(sharding, port, is_master=True, master_listen_fd=server.detach())
        start_followers(port)
        return cls(store, LEADER, sharding, device)

    @classmethod
    def join(cls, sharding: Sharding, rank: int, port: int, device: str = "cpu") -> "ShardGroup":
        """Join the group whose rendezvous listens on `port`."""
        return cls(_store(sharding, port, is_master=False), rank, sharding, device)

    def wait_for_all(self) -> None:
        """Return once every rank has called this.

        Raises:
            ModelError: A rank has not called it within `start_timeout_s`.
        """
        try:
            dist.monitored_barrier(self._plans, timedelta(seconds=self.sharding.group_start_timeout_s))
        except RuntimeError as error:
            raise ModelError(_timeout_message(self.sharding, "loaded", error)) from error

    def smallest(self, number: int) -> int:
        """Return the smallest number with which a rank calls this, once every rank has.

        Raises:
            RunnerLost: The group is broken.
        """
        found = torch.tensor([number])
        try:
            dist.all_reduce(found, dist.ReduceOp.MIN, self._plans)
        except RuntimeError as error:
            raise RunnerLost(f"rank {self.rank} has lost its group: {_first_line(error)}") from error
        return int(found.item())

    def send(self, values: list[int]) -> None:
        """Send a plan to the followers; return before they have received it.

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
        """Receive the leader's next plan.

        Raises:
            RunnerLost: The group is broken, or the leader sent nothing within `timeout_s`.
        """
        frame = torch.zeros(_FRAME, dtype=torch.long)
        self._broadcast(frame)
        length, *values = frame.tolist()
        if length + 1 > _FRAME:
            rest = torch.zeros(length + 1 - _FRAME, dtype=torch.long)
            self._broadcast(rest)
            values += rest.tolist()
        return values[:length]

    def report_failure(self, forward: int) -> None:
        """Record for the leader that this rank has failed in the forward of this number."""
        self._store.set(_failure_key(forward, self.rank), str(self._num_collectives()))

    def has_failed_everywhere(self, forward: int) -> bool:
        """Check that all other ranks have failed in this forward too, after the same collective operation.

        Then no rank waits for another one, and the group can continue.
        """
        others = [_failure_key(forward, rank) for rank in range(self.sharding.shards) if rank != self.rank]
        try:
            self._store.wait(
                others, timedelta(seconds=self.sharding.group_timeout_s / HEARTBEATS_PER_TIMEOUT)
            )
            return all(int(self._store.get(key)) == self._num_collectives() for key in others)
        except RuntimeError:
            return False

    def _num_collectives(self) -> int:
        """Return the number of collective operations of the model that this rank has begun."""
        group = dist.group.WORLD
        assert group is not None
        backend: Any = group._get_backend(self._device)  # torch's stubs lack the method
        return int(backend._get_sequence_number_for_group())

    @contextlib.contextmanager
    def left_on_error(self) -> Iterator[None]:
        """Leave the group if the block fails, so that the other ranks fail at once too.

        Raises:
            RunnerLost: In place of torch's own error when a rank is lost.
        """
        try:
            yield
        except BaseException as error:
            self.leave()
            if isinstance(error, RuntimeError) and not isinstance(error, RunnerLost):
                raise RunnerLost(f"rank {self.rank} has lost its group: {_first_line(error)}") from error
            raise

    def leave(self) -> None:
        """Close the connections; without a last plan, the other ranks report this one as lost."""
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()

    def _broadcast(self, tensor: torch.Tensor) -> None:
        try:
            dist.broadcast(tensor, LEADER, self._plans)
        except RuntimeError as error:
            raise RunnerLost(f"rank {self.rank} has lost its group: {_first_line(error)}") from error


def _store(sharding: Sharding, port: int, is_master: bool, **options: Any) -> TCPStore:
    timeout = timedelta(seconds=sharding.group_start_timeout_s)
    try:
        return TCPStore(_HOST, port, sharding.shards, is_master, timeout, wait_for_workers=False, **options)
    except RuntimeError as error:
        raise ModelError(_timeout_message(sharding, "joined", error)) from error


def join_all(store: Store, rank: int, sharding: Sharding, gpu: str = "") -> None:
    """Wait for all ranks with `start_timeout_s`; the group's own timeout is too short for a start.

    `gpu` is the identity of this rank's GPU; "" on a CPU.

    Raises:
        ModelError: A rank has not joined in time, or two ranks have the same GPU, which NCCL refuses.
    """
    try:
        store.set(f"rank-{rank}", f"gpu {gpu}")
        all_ranks = [f"rank-{other}" for other in range(sharding.shards)]
        store.wait(all_ranks, timedelta(seconds=sharding.group_start_timeout_s))
        taken = [store.get(key).decode() for key in all_ranks]
    except RuntimeError as error:
        raise ModelError(_timeout_message(sharding, "joined", error)) from error
    for other, name in enumerate(taken):
        if gpu and other != rank and name == f"gpu {gpu}":
            ranks = " and ".join(map(str, sorted((rank, other))))
            raise ModelError(
                f"shards is {sharding.shards}: ranks {ranks} have the same GPU, {gpu}: give each its own"
            )


def _failure_key(forward: int, rank: int) -> str:
    return f"failed-{forward}-{rank}"


def _timeout_message(sharding: Sharding, act: str, error: Exception) -> str:
    limit = f"{sharding.group_start_timeout_s:g} s (group_start_timeout_s)"
    return f"shards: {sharding.shards} ranks have not {act} within {limit}: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
