"""A response cache in which responses are found at once."""

from collections.abc import Sequence

from services.lookup.index.response_cache import ResponseCache


class LinkedCache(ResponseCache):
    """Links every response as a whole when it is added."""

    def add(self, ids: Sequence[int], salt: str = "") -> None:
        super().add(ids, salt)
        assert not self.link(len(ids))
