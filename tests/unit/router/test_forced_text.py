"""Forced text along a response: a round follows the tokens that are new, not the whole response."""

from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any

from flyserve.core.sequence import TokenSequence
from router.generation.drafts.free import ForcedText


class RecordingFollower:
    """A follower that records the tokens it is given, and forces nothing."""

    def __init__(self) -> None:
        self.response: list[int] = []
        self.num_given: list[int] = []

    def move(self, tokens: Sequence[int], kept: int = 0) -> bool:
        self.num_given.append(len(tokens))
        self.response[kept:] = tokens
        return True

    def forced(self) -> list[int]:
        return []

    def num_allowed(
        self, tokens: Sequence[int], drafts: Sequence[int], ending_ids: Collection[int], kept: int = 0
    ) -> int:
        self.move([*tokens, *drafts], kept)
        return len(drafts)


def test_a_round_follows_the_tokens_that_may_have_changed() -> None:
    follower, prompt = RecordingFollower(), [7] * 10
    request: Any = SimpleNamespace(
        grammar=SimpleNamespace(follower=lambda: follower),
        prompt_ids=prompt,
        sampling=SimpleNamespace(ending_ids=()),
        needs_distributions=False,
    )
    text, sequence = ForcedText(request), TokenSequence(prompt)
    for round_number in range(200):
        decided = len(sequence)
        sequence.extend([round_number, -1])
        text.after(sequence, decided)
        assert follower.response == sequence.ids[len(prompt) :]
        assert text.num_allowed(sequence, decided, [8, 9]) == 2
        assert follower.response == [*sequence.ids[len(prompt) :], 8, 9]
        sequence.truncate(len(sequence) - 1)
    assert max(follower.num_given) <= 5
