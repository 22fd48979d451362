"""Text that grows by pieces until it is taken, such as text that a parser withholds. Pure."""

from io import StringIO


class GrowingText:
    """A text to which pieces are added, each at the cost of its own length.

    NOTE: `+=` on an attribute copies all of the text, so the cost of many pieces would grow with its square.
    """

    __slots__ = ("_buffer",)

    def __init__(self, text: str = "") -> None:
        self._buffer = StringIO()
        self._buffer.write(text)

    def __len__(self) -> int:
        return self._buffer.tell()

    def __str__(self) -> str:
        return self._buffer.getvalue()

    def add(self, piece: str) -> None:
        """Add a piece to the end."""
        self._buffer.write(piece)

    def take(self) -> str:
        """Return the text, and begin again without any."""
        if not self._buffer.tell():
            return ""
        text, self._buffer = self._buffer.getvalue(), StringIO()
        return text
