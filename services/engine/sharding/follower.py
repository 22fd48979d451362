"""A follower of a shared model: it hears a plan, repeats the memory operations, runs the forward."""

from services.engine.config import ModelConfig
from services.engine.forward.torch_runner import TorchRunner, load_runner
from services.engine.sharding.group import ShardGroup
from services.engine.sharding.operations import repeat
from services.engine.sharding.plan_codec import GroupPlan, decode


def follow(config: ModelConfig, rank: int, port: int) -> None:
    """Joins the group whose rendezvous is at `port`, and runs what its leader tells until the last plan.

    Raises:
        ModelError: The model cannot be served, or the group was not complete in time.
        RunnerLost: The group is broken.
    """
    assert config.sharding is not None
    group = ShardGroup.join(config.sharding, rank, port, config.device)
    with group.left_on_error():
        runner = load_runner(config, config.sharding.shards, group.wait_for_all)
        while not (plan := decode(group.receive())).is_last:
            run(plan, runner)
    group.leave()


def run(plan: GroupPlan, runner: TorchRunner) -> None:
    """One plan: memory first, as the leader had it when it made the forward."""
    for operation in plan.operations:
        repeat(operation, runner)
    if plan.works:
        runner.logits(plan.works)
