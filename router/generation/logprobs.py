"""Log-probabilities of a response's positions, between the verification and the decision."""

from flyserve.core.messages import Verification
from flyserve.core.types import Logprobs, PositionLogprobs, RankedToken, Token
from router.text.tokenizer import Tokenizer


class PendingLogprobs:
    """Log-probabilities by position; a later verification of a position overwrites an earlier one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._by_position: dict[int, PositionLogprobs] = {}

    def record(self, first: int, verification: Verification) -> None:
        """Record the log-probabilities of the positions from `first` on, if they were requested."""
        self._by_position.update(enumerate(verification.logprobs, start=first))

    def take(self, position: int, decided: Token) -> Logprobs | None:
        """Remove and return those of the token decided at a position; None if they were not requested."""
        found = self._by_position.pop(position, None)
        if found is None:
            return None
        is_choice = decided.id == decided.choice or found.draft is None
        own = found.choice if is_choice else found.draft
        assert own is not None
        texts = self._tokenizer.pieces([token for token, _ in found.top])
        top = (RankedToken(token, text, value) for (token, value), text in zip(found.top, texts, strict=True))
        return Logprobs(own, found.choice, tuple(top))
