"""A limit of the tokens that look-up indexes hold, over all sequences of a process."""

import threading

from flyserve.core.errors import InvalidRequest


class IndexBudget:
    """The limit, and what is taken of it; any thread may use it."""

    def __init__(self, max_tokens: int = 1 << 22) -> None:
        self.max_tokens = max_tokens
        self._num_tokens = 0
        self._lock = threading.Lock()

    @property
    def num_tokens(self) -> int:
        """Tokens that the indexes hold at present."""
        return self._num_tokens

    def share(self, is_required: bool = False) -> "IndexShare":
        """Return the share of one sequence, empty at first; see `IndexShare`."""
        return IndexShare(self, is_required)

    def _add(self, num_tokens: int) -> bool:
        if self._num_tokens + num_tokens > self.max_tokens:
            return False
        self._num_tokens += num_tokens
        return True


class IndexShare:
    """The tokens that the indexes of one sequence hold of a budget."""

    def __init__(self, budget: IndexBudget, is_required: bool = False) -> None:
        """Start empty; if the share `is_required`, an exhausted budget is an error."""
        self._budget = budget
        self._is_required = is_required
        self._num_tokens = 0
        self._is_closed = False

    def take(self, num_tokens: int) -> bool:
        """Add tokens to the share; return False if the budget is exhausted or the share closed.

        Raises:
            InvalidRequest: The share is required, and the budget is exhausted.
        """
        with self._budget._lock:
            is_granted = not self._is_closed and self._budget._add(num_tokens)
            self._num_tokens += num_tokens if is_granted else 0
        if self._is_required and not is_granted:
            found = f"is set, so {num_tokens} more tokens must be indexed"
            limit = f"the look-up indexes hold at most {self._budget.max_tokens} (lookup_index_tokens)"
            raise InvalidRequest.of("without_copies", f"{found}; {limit}")
        return is_granted

    def give_back(self, num_tokens: int) -> None:
        """Remove tokens from the share."""
        with self._budget._lock:
            returned = min(num_tokens, self._num_tokens)
            self._num_tokens -= returned
            self._budget._add(-returned)

    def close(self) -> None:
        """Give back all tokens, and take none from now on."""
        with self._budget._lock:
            self._is_closed = True
            self._budget._add(-self._num_tokens)
            self._num_tokens = 0
