"""`python -m services.target --shards 2`: its info, and that all processes end together."""

import grpc
import psutil

from protos.flyserve.v1 import common_pb2
from protos.flyserve.v1.target_pb2_grpc import TargetStub
from tests.support.processes import TARGET_MODEL, service

FLAGS = ("--model", str(TARGET_MODEL), "--dtype", "float32")


def follower_of(pid: int) -> psutil.Process:
    """Return the child process with the other shard; Python's resource tracker is a child, too."""
    children = psutil.Process(pid).children()
    return next(child for child in children if "spawn_main" in " ".join(child.cmdline()))


def test_a_shared_target_ends_with_its_follower_and_the_follower_with_it() -> None:
    with service("services.target", *FLAGS, "--shards", "2") as target:
        with grpc.insecure_channel(target.address) as channel:
            info = TargetStub(channel).Info(common_pb2.InfoRequest(), timeout=30).model
        assert (info.shards, info.architecture) == (2, "LlamaForCausalLM")
        follower_of(target.process.pid).kill()
        assert target.process.wait(60) == 1

    with service("services.target", *FLAGS, "--shards", "2") as target:
        follower = follower_of(target.process.pid)
        target.kill()
        follower.wait(60)
