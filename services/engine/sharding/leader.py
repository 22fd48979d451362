"""The leader of a sharded model: a runner whose forwards are computed by all ranks."""

import importlib.util
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from flyserve.core.errors import ModelError
from services.common.model_source import model_folder
from services.engine.base import ForwardInput, RunnerLost
from services.engine.config import ModelConfig, StartFollowers
from services.engine.forward.torch_runner import TorchRunner, load_runner
from services.engine.loading.architecture import read_config
from services.engine.sharding.group import ShardGroup
from services.engine.sharding.plans import GroupPlan, RecordingAllocator, encode

logger = logging.getLogger(__name__)

_SPLIT_SIZES = {
    "num_attention_heads": "attention heads",
    "num_key_value_heads": "KV heads",
    "intermediate_size": "MLP width",
    "moe_intermediate_size": "width of the experts",
}
"""Sizes of a model that the number of shards must divide."""


class LeaderRunner(RecordingAllocator):
    """A `Runner` that sends plans to its followers.

    Attributes:
        num_forwards: Plans with a forward that it has sent.
    """

    def __init__(self, runner: TorchRunner, group: ShardGroup) -> None:
        super().__init__(runner)
        self.info = runner.info
        self.num_forwards = 0
        self._runner = runner
        self._group = group
        self._is_lost = False

    def logits(self, batch: Sequence[ForwardInput]) -> Tensor:
        """Compute a batch on all ranks; an error is `RunnerLost` unless all ranks fail."""
        self._send(batch)
        self.num_forwards += 1
        try:
            return self._runner.logits(batch)
        except Exception as error:
            if not isinstance(error, RunnerLost) and self._group.has_failed_everywhere(self.num_forwards):
                raise
            # NOTE: some other rank may wait in a collective operation of a forward that this rank has left.
            self._is_lost = True
            raise RunnerLost(f"a sharded forward failed: {type(error).__name__}") from error

    @property
    def idle_interval_s(self) -> float:
        return self._group.sharding.heartbeat_s

    def on_idle(self) -> None:
        """Send a heartbeat, with the memory operations since the last plan."""
        self._send(())

    def close(self) -> None:
        """Send the last plan to the followers, and leave the group."""
        if not self._is_lost:
            try:
                self._send((), is_last=True)
            except RunnerLost as error:
                logger.warning("the last plan could not be sent to the followers: %s", error)
        self._group.leave()

    def _send(self, inputs: Sequence[ForwardInput], is_last: bool = False) -> None:
        plan = GroupPlan(operations=self.take_operations(), inputs=inputs, is_last=is_last)
        try:
            self._group.send(encode(plan))
        except RunnerLost:
            self._is_lost = True
            raise


def lead(config: ModelConfig, start_followers: StartFollowers) -> LeaderRunner:
    """Form the group, load this rank's part, and check the sharded model against transformers.

    Raises:
        ModelError: The model cannot be split by the number of shards, or a follower was not ready in time.
        RunnerLost: A follower was lost meanwhile.
    """
    sharding = config.sharding
    assert config.model is not None and sharding is not None
    check_shards(read_config(model_folder(config.model)).get_text_config(), sharding.shards)
    if config.device != "cpu":
        logger.warning("shards is %d on GPUs: experimental, never measured; try engine vllm", sharding.shards)
    group = ShardGroup.lead(sharding, start_followers, config.device)
    with group.left_on_error():
        runner = load_runner(config, sharding.shards, group.wait_for_all, group.smallest)
        return LeaderRunner(runner, group)


def check_shards(config: Any, shards: int) -> None:
    """Raise `ModelError` if a model cannot be split into equal parts; `config` is that of its text part."""
    name = config.model_type
    if not getattr(config, "base_model_tp_plan", None):
        raise ModelError(f"shards is {shards}: {name} has no tensor parallel plan in transformers, must be 1")
    if faults := list(_faults(config, shards)):
        raise ModelError(f"shards is {shards}: must divide {' and '.join(faults)} of {name}")
    if importlib.util.find_spec("accelerate") is None:
        raise ModelError(
            f"shards is {shards}: loading a part of a model needs the package accelerate: install it"
        )


def _faults(config: Any, shards: int) -> Iterator[str]:
    for field, description in _SPLIT_SIZES.items():
        size = getattr(config, field, None)
        if isinstance(size, int) and size % shards:
            yield f"the {size} {description}"
