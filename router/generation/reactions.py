"""Reactions to errors of a replica's step: one table for targets and drafters."""

from enum import Enum

from flyserve.core.errors import (
    DeadlineExceeded,
    FlyServeError,
    InternalError,
    InvalidAnswer,
    InvalidRequest,
    Overloaded,
)


class Reaction(Enum):
    """Meaning of an error for the request, and for the replica."""

    RAISE = "the request is at fault, or out of time: report the error; the replica is healthy"
    RETRY_ONCE = "the request may be the cause: try one other replica, then report; the replica is healthy"
    WAIT = "the replica is full, but healthy: try the others, then wait for a place"
    PROBE = "the replica may be lost: continue elsewhere; its health probe decides if it is healthy"
    LEAVE = "the replica does not follow the protocol: continue elsewhere; it is not healthy"


_REACTIONS: tuple[tuple[type[FlyServeError], Reaction], ...] = (
    (InvalidRequest, Reaction.RAISE),
    (DeadlineExceeded, Reaction.RAISE),
    (InternalError, Reaction.RETRY_ONCE),
    (Overloaded, Reaction.WAIT),
    (InvalidAnswer, Reaction.LEAVE),
    (FlyServeError, Reaction.PROBE),
)
"""Reaction to each class of error; the first class that fits counts."""


def reaction_to(error: FlyServeError) -> Reaction:
    """Return the reaction to an error of a step."""
    return next(reaction for kind, reaction in _REACTIONS if isinstance(error, kind))
