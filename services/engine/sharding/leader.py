"""The leader of a shared model: a runner whose every forward is run by all ranks."""

import logging
from collections.abc import Sequence

from torch import Tensor

from services.common.model_source import model_folder
from services.engine.base import RunnerLost, Scores, Work
from services.engine.config import ModelConfig, StartFollowers
from services.engine.forward.torch_runner import TorchRunner, load_runner
from services.engine.loading.architecture import read_config
from services.engine.sharding.checks import check_shards
from services.engine.sharding.group import ShardGroup
from services.engine.sharding.operations import RecordingMemory
from services.engine.sharding.plan_codec import GroupPlan, encode

logger = logging.getLogger(__name__)


class LeaderRunner(RecordingMemory):
    """A `Runner` that tells its followers what to do; the head is only here.

    Attributes:
        info: What it serves.
        num_heartbeats: Plans without work that it has sent.
    """

    def __init__(self, runner: TorchRunner, group: ShardGroup) -> None:
        super().__init__(runner)
        self.info = runner.info
        self.num_heartbeats = 0
        self._runner = runner
        self._group = group
        self._is_lost = False

    def forward(self, batch: Sequence[Work]) -> list[Scores]:
        """As a `Runner`.

        Raises:
            RunnerLost: A rank is lost, or the ranks no longer do the same.
        """
        self._tell(batch)
        return self._runner.score(self._logits(batch), batch)

    @property
    def idle_interval_s(self) -> float:
        return self._group.sharding.heartbeat_s

    def on_idle(self) -> None:
        """A heartbeat; memory operations go along.

        Raises:
            RunnerLost: A rank is lost.
        """
        self._tell(())
        self.num_heartbeats += 1

    def close(self) -> None:
        """Tells the followers to end, and leaves."""
        if not self._is_lost:
            try:
                self._tell((), is_last=True)
            except RunnerLost as error:
                logger.warning("the group could not be told to end: %s", error)
        self._group.leave()

    def _tell(self, works: Sequence[Work], is_last: bool = False) -> None:
        try:
            self._group.send(encode(GroupPlan(self.take(), works, is_last)))
        except RunnerLost:
            self._is_lost = True
            raise

    def _logits(self, batch: Sequence[Work]) -> Tensor:
        try:
            return self._runner.logits(batch)
        except Exception as error:
            # NOTE: whatever it is: the other ranks are in the middle of a forward that this one has left.
            self._is_lost = True
            raise RunnerLost(f"a shared forward failed: {type(error).__name__}") from error


def lead(config: ModelConfig, start_followers: StartFollowers) -> LeaderRunner:
    """Forms the group, loads this rank's part, and proves with the others that they compute the model.

    Raises:
        ModelError: The model cannot be served by so many, or they were not ready in time.
        RunnerLost: A follower was lost meanwhile.
    """
    sharding = config.sharding
    assert config.model is not None and sharding is not None
    check_shards(read_config(model_folder(config.model)).get_text_config(), sharding.shards)
    group = ShardGroup.lead(sharding, start_followers, config.device)
    with group.left_on_error():
        return LeaderRunner(load_runner(config, sharding.shards, group.wait_for_all), group)
