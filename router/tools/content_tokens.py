"""Tokens that the content of a message is made of, for their log-probabilities. Pure."""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from router.text.growing_text import GrowingText


class _Group(NamedTuple):
    """Tokens with one text, such as those of one character.

    Attributes:
        start: Place of the text among the text that is not settled.
        num_tokens: Number of the tokens.
    """

    start: int
    num_tokens: int


class ContentTokens:
    """Finds the tokens of the content by the text that leaves a message.

    Text leaves a message in order, as content or not at all, and what is withheld is its end. So the text
    that has left with a token shows which tokens are content. A token that is content in part is content.
    """

    def __init__(self) -> None:
        self._text = GrowingText()
        self._groups = deque[_Group]()
        self._num_without_text = 0

    def push(self, text: str) -> None:
        """Add a token; one without text belongs to the next one that has some."""
        self._num_without_text += 1
        self._add(text)

    def settle(self, num_withheld: int, content: str) -> Iterator[bool]:
        """Yield for each token that is settled now whether it is content, in order.

        Args:
            num_withheld: Characters at the end of all text that have not left the message.
            content: Text that has left it since the last call as content.
        """
        length = max(0, len(self._text) - num_withheld)
        if length:
            yield from self._settled(length, str(self._text).rfind(content, 0, length), content)

    def finish(self, text: str, content: str) -> Iterator[bool]:
        """Yield it for the rest, after the last text, which is of the tokens that had none so far.

        Text after a stop string is dropped, so here the content comes first.
        """
        self._add(text)
        yield from self._settled(len(self._text), str(self._text).find(content), content)
        yield from [False] * self._num_without_text

    def _add(self, text: str) -> None:
        if text:
            self._groups.append(_Group(len(self._text), self._num_without_text))
            self._text.add(text)
            self._num_without_text = 0

    def _settled(self, length: int, start: int, content: str) -> Iterator[bool]:
        """Yield it for the tokens of the first `length` characters; the content begins at `start`."""
        end = start + len(content)
        while self._groups and self._groups[0].start < length:
            following = self._groups[1].start if len(self._groups) > 1 else len(self._text)
            is_content = bool(content) and self._groups[0].start < end and following > start
            if following > length and not is_content:
                break
            yield from [is_content] * self._groups.popleft().num_tokens
        self._drop(length)

    def _drop(self, length: int) -> None:
        if length:
            self._text.add(self._text.take()[length:])
            self._groups = deque(each._replace(start=each.start - length) for each in self._groups)
