"""Followers as child processes: a shared model without Ray."""

import multiprocessing
import signal
from functools import partial

from services.engine.factory import EngineConfig, StartFollowers
from services.engine.sharding.settings import Sharding


def spawned_followers(config: EngineConfig, sharding: Sharding) -> StartFollowers:
    """Followers that end with this process, or by themselves where it is killed."""
    return partial(_spawn, config, sharding)


def _spawn(config: EngineConfig, sharding: Sharding, port: int) -> None:
    context = multiprocessing.get_context("spawn")
    for rank in range(1, sharding.shards):
        arguments = (config, sharding, rank, port)
        context.Process(target=_follow, args=arguments, name=f"shard-{rank}", daemon=True).start()


def _follow(config: EngineConfig, sharding: Sharding, rank: int, port: int) -> None:
    from services.engine.sharding.follower import follow

    # NOTE: a terminal's Ctrl-C reaches every process of it; the leader drains first, then tells.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    follow(config, sharding, rank, port)
