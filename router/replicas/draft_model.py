"""The drafters' own model, which drafters decode by themselves for requests in mode draft."""

from flyserve.core.errors import InvalidRequest, NotReady
from flyserve.core.messages import ModelInfo
from router.replicas.compatibility import incompatibility
from router.replicas.directory import ReplicaDirectory
from router.replicas.pools import Accepts, any_replica, roomiest
from router.replicas.replica import Replica


class DraftModel:
    """The drafters that serve their own model.

    It exists from the first time that one of them is seen: later, a request waits for a drafter that is away.
    """

    def __init__(self, replicas: ReplicaDirectory) -> None:
        self._replicas = replicas
        self._target: ModelInfo | None = None
        self._has_been_served = False

    def serves(self, drafter: Replica) -> bool:
        """Return True if a drafter serves its model, and its token ids are those of the targets."""
        if targets := self._replicas.targets.replicas:
            self._target = targets[0].info
        return (
            drafter.info.standalone_sequences > 0
            and self._target is not None
            and incompatibility(self._target, drafter.info) is None
        )

    def ready(self, accepts: Accepts = any_replica) -> list[Replica]:
        """Return the accepted drafters that serve their model."""
        ready = self._replicas.drafters.ready(lambda drafter: self.serves(drafter) and accepts(drafter))
        self._has_been_served = self._has_been_served or bool(ready)
        return ready

    def places(self) -> int:
        """Sequences that the ready drafters may decode by themselves."""
        return sum(drafter.info.standalone_sequences for drafter in self.ready())

    @property
    def absence(self) -> str | None:
        """Reason why there is no such model; None if there is one, even if its drafters are away."""
        if self.ready() or self._has_been_served:
            return None
        drafters = self._replicas.drafters.ready(any_replica)
        if not drafters:
            return "there is no drafter that runs a model"
        info = drafters[0].info
        if not info.weight_fingerprint:
            return f"the drafter looks tokens up ({info.architecture}) and runs no model"
        if info.standalone_sequences:
            return "the drafter's token map is not that of the target"
        return "the drafters only draft for targets (drafter.standalone_sequences is 0)"

    def check(self) -> None:
        """Raise InvalidRequest if there is no such model."""
        if (reason := self.absence) is not None:
            raise InvalidRequest.of("speculation.mode", f"is draft, but {reason}")

    def info(self, accepts: Accepts) -> ModelInfo:
        """Return the model of the accepted drafters; raise NotReady if there is none at present."""
        if not (ready := self.ready(accepts)):
            raise NotReady("no drafter that serves its own model is available")
        return roomiest(ready).info
