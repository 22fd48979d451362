"""Configuration of one drafter replica, or of a sub-drafter replica that runs a model."""

import math
import os
from typing import Literal

from pydantic import Field

from services.common.config import AutoSwitch
from services.drafter.session import DraftingLimits
from services.engine.settings import ModelSettings


class DrafterConfig(ModelSettings):
    """What a drafter replica serves, where it listens, and who helps it.

    Attributes:
        role: `sub_drafter` for a tiny model that helps a drafter.
        registry: host:port of the registry that knows the sub-drafters.
        sub_drafter: host:port of a sub-drafter, or `dns:host:port` of several, where there is no registry.
        max_draft: Longest draft that one step may ask for.
        draft_ahead: Go on drafting while the target verifies, as if all were accepted. `auto` does where the
            CPUs that this process may use are enough for all that was declared to run here, and else while
            fewer sequences are open than there are CPUs: each keeps one busy with its verification.
        declared_cpus: CPUs that the deployment's replicas and routers ask for together; unknown where nobody
            says, and `auto` is then off.
    """

    role: Literal["drafter", "sub_drafter"] = "drafter"
    registry: str | None = None
    sub_drafter: str | None = None
    max_draft: int = Field(64, ge=1, le=1024)
    draft_ahead: AutoSwitch = "auto"
    declared_cpus: float | None = Field(None, gt=0)

    @property
    def limits(self) -> DraftingLimits:
        """The same for a session, on this machine."""
        return DraftingLimits(self.max_draft, self.ahead_sequences(len(os.sched_getaffinity(0))))

    def ahead_sequences(self, usable_cpus: int) -> float:
        """Most open sequences with which to draft ahead on so many CPUs."""
        if self.draft_ahead != "auto":
            return math.inf if self.draft_ahead == "on" else 0
        if self.declared_cpus is None:
            return 0
        return math.inf if usable_cpus >= self.declared_cpus else usable_cpus - 1
