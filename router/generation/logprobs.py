"""The target's log-probabilities by position, from the verification until the token there is decided."""

from fly.messages import Verification
from fly.types import DecidedToken, Logprobs
from router.generation.response import RankedToken, TokenLogprobs
from router.text.tokenizer import Tokenizer


class LogprobBuffer:
    """Keeps what a verification says of each position; a later one of the same position overwrites it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._by_position: dict[int, Logprobs] = {}

    def note(self, first: int, verification: Verification) -> None:
        """Takes what was answered for the positions from `first` on; nothing where nothing was asked for."""
        self._by_position.update(enumerate(verification.logprobs, start=first))

    def take(self, position: int, decided: DecidedToken) -> TokenLogprobs | None:
        """What is known of the token that was decided at a position; None where nothing was asked for."""
        noted = self._by_position.pop(position, None)
        if noted is None:
            return None
        is_choice = decided.token == decided.choice or noted.draft is None
        own = noted.choice if is_choice else noted.draft
        assert own is not None
        texts = self._tokenizer.pieces([token for token, _ in noted.top])
        top = (RankedToken(token, text, value) for (token, value), text in zip(noted.top, texts, strict=True))
        return TokenLogprobs(own, noted.choice, tuple(top))
