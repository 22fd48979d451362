"""Who is told of a process's work: by default nobody. Metrics are one kind of observer."""

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from fly.messages import Draft, Role, Verification
from fly.response import Statistics
from fly.sequence import StaleReason
from fly.types import Decision, FinishReason, Mode

Answer = TypeVar("Answer", contravariant=True)


class StepObserver(Generic[Answer]):
    """Told of every step that a service answers; does nothing by itself."""

    def answered(self, answer: Answer, seconds: float) -> None:
        """A step was answered, this long after it came."""

    def stale(self, reason: StaleReason) -> None:
        """A step could not be applied: its sequence is replayed."""


class ResponseObserver:
    """Told of the rounds of one mode's responses at a router; does nothing by itself."""

    def drafted(self, draft: Draft, seconds: float) -> None:
        """A drafter answered after so long."""

    def missed_draft(self) -> None:
        """A draft was wanted, and there was none."""

    def verified(self, verification: Verification, seconds: float) -> None:
        """A target answered after so long."""

    def decided(self, num_drafts: int, num_kept: int, decision: Decision) -> None:
        """A round is over, in which the first `num_kept` of `num_drafts` draft tokens were kept."""

    def first_token(self, seconds: float) -> None:
        """The first token was decided, so long after the request came."""

    def finished(self, reason: FinishReason, statistics: Statistics) -> None:
        """A response has come to its end."""


class RouterObserver:
    """Told of every request at a router; does nothing by itself."""

    def watch(self, num_queued: Callable[[], int], replicas: Callable[[], Mapping[Role, int]]) -> None:
        """Where to look: requests that wait, and replicas that may be picked, by role."""

    def arrived(self) -> None:
        """A request came."""

    def accepted(self, mode: Mode, num_prompt_tokens: int) -> None:
        """A request breaks no limit."""

    def admitted(self, seconds: float) -> None:
        """A request got its place, after it had waited so long."""

    def ended(self, mode: str, outcome: str, seconds: float) -> None:
        """A request is over: its mode as far as it is known, `ok` or the kind of its error, its time."""

    def response(self, mode: Mode) -> ResponseObserver:
        """Who is told of the responses of this mode."""
        return _NOBODY


_NOBODY = ResponseObserver()
