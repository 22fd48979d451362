"""A server's side of the truth by position: the token ids that it knows, and how updates change them."""

from collections.abc import Sequence

from fly.errors import InvalidRequest
from fly.messages import StaleReason
from fly.tokens import SequenceUpdate, TokenSequence


class StaleState(Exception):
    """A step builds on tokens that are not known here; the stream answers `Stale`."""

    def __init__(self, reason: StaleReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


class KnownSequence:
    """The token ids that a server knows of one sequence.

    Attributes:
        tokens: The ids.
        decided: How many of them will never be rolled back.
    """

    def __init__(self, vocab_size: int, context_length: int = 0) -> None:
        """Starts empty; ids lie below `vocab_size`, and a `context_length` of 0 is unlimited."""
        self.tokens = TokenSequence()
        self.decided = 0
        self._vocab_size = vocab_size
        self._context_length = context_length

    def __len__(self) -> int:
        return len(self.tokens)

    def apply(self, update: SequenceUpdate) -> int:
        """Truncates to `update.keep` and appends `update.tokens`; from `keep = 0` it replays.

        Returns:
            Length of the prefix that has not changed.

        Raises:
            StaleState: The kept tokens are not known here; the sequence is unchanged.
            InvalidRequest: A field breaks a limit; the sequence is unchanged.
        """
        self._check_values(update)
        unchanged = update.keep
        if update.keep == 0:
            unchanged = common_length(self.tokens.ids, update.tokens)
        else:
            self._check_kept(update)
        self.tokens.truncate(unchanged)
        self.tokens.extend(update.tokens[unchanged - update.keep :])
        self.decided = update.decided
        return unchanged

    def _check_values(self, update: SequenceUpdate) -> None:
        for index, token in enumerate(update.tokens):
            if not 0 <= token < self._vocab_size:
                raise InvalidRequest.of(
                    f"update.tokens[{index}]", f"is {token}, must be 0 to {self._vocab_size - 1}"
                )
        if update.keep < 0:
            raise InvalidRequest.of("update.keep", f"is {update.keep}, must be at least 0")
        length = update.keep + len(update.tokens)
        if self._context_length and length > self._context_length:
            raise InvalidRequest.of(
                "update.tokens", f"make {length} tokens, the context holds {self._context_length}"
            )
        if not 0 <= update.decided <= length:
            raise InvalidRequest.of("update.decided", f"is {update.decided}, must be 0 to {length}")

    def _check_kept(self, update: SequenceUpdate) -> None:
        if update.keep > len(self.tokens):
            raise StaleState(StaleReason.BEYOND_STATE)
        if self.tokens.prefix_hash(update.keep) != update.prefix_hash:
            raise StaleState(StaleReason.WRONG_HASH)
        if update.keep < self.decided:
            raise InvalidRequest.of("update.keep", f"is {update.keep}, must be 0 or at least {self.decided}")
        if update.decided < self.decided:
            raise InvalidRequest.of("update.decided", f"is {update.decided}, must be at least {self.decided}")


def common_length(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    for length, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return length
    return min(len(left), len(right))
