"""Followers as child processes: a shared model without Ray."""

import multiprocessing
import signal
from functools import partial

from services.engine.config import ModelConfig, StartFollowers


def spawned_followers(config: ModelConfig) -> StartFollowers:
    """Followers that end with this process, or by themselves where it is killed."""
    return partial(_spawn, config)


def _spawn(config: ModelConfig, port: int) -> None:
    assert config.sharding is not None
    context = multiprocessing.get_context("spawn")
    for rank in range(1, config.sharding.shards):
        arguments = (config, rank, port)
        context.Process(target=_follow, args=arguments, name=f"shard-{rank}", daemon=True).start()


def _follow(config: ModelConfig, rank: int, port: int) -> None:
    from services.engine.sharding.follower import follow

    # NOTE: a terminal's Ctrl-C reaches every process of it; the leader drains first, then tells.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    follow(config, rank, port)
