"""The pool of drafters: leave out one whose drafts are rejected, while others draft better."""

import logging
import random
from collections.abc import Iterator
from typing import NamedTuple

from router.policies.base import Policy
from router.policies.request_key import RequestKey
from router.replicas.acceptance import Acceptance, AcceptanceState
from router.replicas.pools import Accepts, ReplicaPool
from router.replicas.replica import Replica

logger = logging.getLogger(__name__)

_COMPARED_SHARE = 1 / 2
"""Share of the responses of a suspect drafter that go to others, to compare."""
_TRIED_SHARE = 1 / 32
"""Share of all responses that still go to a drafter that is left out; as many are compared with them."""
_REMEDY = (
    "check that the drafter's model, revision and quantization suit the target, and restart it: see"
    " FlyServeDraftsRejected in docs/telemetry.md"
)


class Assignment(NamedTuple):
    """The drafter of one response.

    Attributes:
        replica: The drafter.
        judged: The drafter that its drafts are evidence about: another one if it is compared.
    """

    replica: Replica
    judged: Replica

    @property
    def alarm(self) -> str:
        """The alarm about the drafter; empty if there is none."""
        return f"{self.replica.name}: {found}" if (found := self.replica.acceptance.alarm) else ""

    def record(self, num_judged: int, num_accepted: int) -> None:
        """Record the tokens of the response's drafts that were judged, and the accepted ones of them.

        A drafter that looks tokens up is not judged: it may have no draft that fits for hours.
        """
        judged, at_others = self.judged, self.judged is not self.replica
        if not num_judged or judged.info.looks_up:
            return
        if judged.acceptance.record(num_judged, num_accepted, at_others):
            if alarm := judged.acceptance.alarm:
                logger.warning("%s: %s; %s", judged.name, alarm, _REMEDY)
            else:
                logger.info("%s: its drafts are accepted again", judged.name)


class DrafterPool(ReplicaPool):
    """The drafters that may get new sequences."""

    def __init__(self, policy: Policy, source: random.Random | None = None) -> None:
        """Select by `policy`; draw from `source`, comparisons too; by default from a new generator."""
        super().__init__(policy, is_required=False, source=source)

    def assign(self, accepts: Accepts, key: RequestKey = ()) -> Assignment | None:
        """Return the drafter of the next response; None if no accepted one has a place."""
        tried, compared_with = self._tried(accepts)
        if tried is not None and (replica := self.pick(lambda each: each is tried)):
            return Assignment(replica, replica)
        if (replica := self.pick(accepts, key)) is None:
            return None
        if compared_with is not None and compared_with is not replica:
            return Assignment(replica, compared_with)
        return Assignment(self._compared(replica, accepts) or replica, replica)

    def _tried(self, accepts: Accepts) -> tuple[Replica | None, Replica | None]:
        """Return a drafter that is left out to try it, or to compare another one with it; mostly neither."""
        for each in self.ready(accepts):
            if each.is_left_out and (drawn := self._source.random()) < 2 * _TRIED_SHARE:
                return (each, None) if drawn < _TRIED_SHARE else (None, each)
        return None, None

    def _compared(self, replica: Replica, accepts: Accepts) -> Replica | None:
        """Return another drafter for a response of a suspect one, at random; else None.

        NOTE: without a request key the policy's record of the traffic is unchanged.
        """
        if replica.acceptance.state is not AcceptanceState.REJECTED:
            return None
        if self._source.random() >= _COMPARED_SHARE:
            return None
        others = [each for each in self.ready(accepts) if each is not replica and not each.is_left_out]
        usual = [each for each in others if each.acceptance.state is AcceptanceState.USUAL]
        return self.pick(lambda each: each in (usual or others))

    def acceptances(self) -> Iterator[tuple[str, Acceptance]]:
        """Yield the name and the acceptance of each drafter."""
        return ((each.identity, each.acceptance) for each in self.replicas)

    def alarms(self) -> dict[str, str]:
        """Return the alarm of each drafter that has one, with its remedy, by the name of the replica."""
        found = {each.identity: each.acceptance.alarm for each in self.replicas}
        return {name: f"{alarm}; {_REMEDY}" for name, alarm in found.items() if alarm}
