"""The followers of a sharded model: receive plans, replay memory operations, compute forwards.

Importing this module loads no torch, so that a process can start followers without it.
"""

import faulthandler
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from services.engine.base import ForwardInput
from services.engine.config import ModelConfig, StartFollowers
from services.engine.loading.light_start import light_start
from services.engine.loading.torch_environment import set_environment
from services.engine.sharding.plans import decode, replay

if TYPE_CHECKING:
    from services.engine.forward.torch_runner import TorchRunner
    from services.engine.sharding.group import ShardGroup

logger = logging.getLogger(__name__)


def follow(config: ModelConfig, rank: int, port: int) -> None:
    """Join the group whose rendezvous is at `port`, and run its leader's plans until the last one.

    Raises:
        ModelError: The model is not supported, or the group was not complete in time.
        RunnerLost: The group is broken.
    """
    set_environment(config.device)
    with light_start(is_whole=False):
        from services.engine.forward.torch_runner import load_runner
        from services.engine.sharding.group import ShardGroup

    assert config.sharding is not None
    group = ShardGroup.join(config.sharding, rank, port, config.device)
    with group.left_on_error():
        with light_start(is_whole=False):
            runner = load_runner(config, config.sharding.shards, group.wait_for_all, group.smallest)
        num_forwards = 0
        while not (plan := decode(group.receive())).is_last:
            num_forwards += bool(plan.inputs)
            for operation in plan.operations:
                replay(operation, runner)
            if plan.inputs:
                _forward(plan.inputs, num_forwards, runner, group)
    group.leave()


def _forward(inputs: Sequence[ForwardInput], number: int, runner: "TorchRunner", group: "ShardGroup") -> None:
    """Compute a forward; report a failure to the leader, which decides whether the group continues."""
    try:
        runner.logits(inputs)
    except Exception:
        logger.exception("rank %d failed in forward %d", group.rank, number)
        group.report_failure(number)


def spawn_followers(config: ModelConfig) -> StartFollowers:
    """Return a function that starts the followers as child processes, which end with this process."""
    return partial(_spawn, config)


def _spawn(config: ModelConfig, port: int) -> None:
    assert config.sharding is not None
    context = multiprocessing.get_context("spawn")
    for rank in range(1, config.sharding.shards):
        arguments = (config, rank, port)
        context.Process(target=_follow, args=arguments, name=f"shard-{rank}", daemon=True).start()


def _follow(config: ModelConfig, rank: int, port: int) -> None:
    faulthandler.enable(2)
    # NOTE: a terminal signals all its processes; the leader drains first, then sends the last plan.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_leader, daemon=True).start()
    follow(config, rank, port)


def _end_with_leader() -> None:
    """End this process with its leader, even if that is killed while it loads."""
    leader = multiprocessing.parent_process()
    assert leader is not None, "followers are started by multiprocessing"
    leader.join()
    os._exit(1)
