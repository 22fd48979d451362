"""The interface of a source of drafts, and the draft that a round wants of it."""

from typing import NamedTuple, Protocol

from flyserve.core.messages import Draft
from flyserve.core.round_record import DraftOrigin
from flyserve.core.sequence import TokenSequence
from router.replicas.replica import Replica

NO_DRAFT = Draft(step_id=0, tokens=())


class WantedDraft(NamedTuple):
    """The draft that a round wants.

    Attributes:
        target: Target that verifies the draft.
        sequence: Sequence to draft after; it may grow while the draft is made.
        decided: Number of its tokens that will never be rolled back.
        length: Most tokens to request; none are wanted if it is 0 or less.
        most: Most tokens that can be verified, also of a draft that was requested earlier.
        is_first: True in the first round, unless that waits for its draft.
    """

    target: Replica
    sequence: TokenSequence
    decided: int
    length: int
    most: int
    is_first: bool


class DraftSource(Protocol):
    """A source of drafts."""

    @property
    def origin(self) -> DraftOrigin:
        """The origin of its drafts."""

    async def propose(self, wanted: WantedDraft) -> Draft | None:
        """Return a draft; an empty one if the round is to have none; None to ask the next source."""
