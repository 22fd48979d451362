"""Read the header of a GGUF file: the metadata of its model. The weights are left to the engine."""

import mmap
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import Any

from flyserve.core.errors import ModelError, describe

SUFFIX = ".gguf"
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_TEXT, _ARRAY = 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Type of a number in a header, and its code in the module `struct`."""
_FIRST_BYTES, _MOST_BYTES = 1 << 23, 1 << 28
"""Bytes of a stream after which its header is parsed first; a header has about ten million, at most these.
In a file, the weights follow: no count of a header may be as large as they are."""
_MOST_VALUES = 1 << 23
"""Values of all lists of a header: several for each token of the largest vocabulary."""
_PART = re.compile(r"-\d{5}-of-(?P<number>(?!00000)\d{5})\.gguf$")


def is_gguf(model: Path) -> bool:
    """Check that a model is named as a GGUF file."""
    return model.suffix == SUFFIX


def part_names(name: str) -> list[str]:
    """Return the names of all files of a model, given one of them (`NAME-00002-of-00003.gguf`)."""
    if (found := _PART.search(name)) is None:
        return [name]
    stem, number = name[: found.start()], int(found["number"])
    return [f"{stem}-{part:05}-of-{number:05}{SUFFIX}" for part in range(1, number + 1)]


def gguf_parts(file: Path) -> list[Path]:
    """Return all files of a model, of which `file` is the only or the first one.

    Raises:
        ModelError: A part is missing, or `file` is another part.
    """
    parts = [file.with_name(name) for name in part_names(file.name)]
    if file != parts[0]:
        raise ModelError(f"{file} is a part of a model: name the first one, {parts[0].name}")
    if missing := [part.name for part in parts[1:] if not part.is_file()]:
        raise ModelError(f"{file.parent} lacks parts of the model: {', '.join(missing[:5])}")
    return parts


def read_header(file: Path) -> dict[str, Any]:
    """Return the metadata of a file.

    Raises:
        ModelError: It cannot be read, is no GGUF file, or ends within its header.
    """
    try:
        with _damage_named(str(file)), file.open("rb") as opened:
            _require_magic(str(file), opened.read(len(_MAGIC)))
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _Reader(content, min(len(content), _MOST_BYTES)).metadata()
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {describe(error)}") from None


def streamed_header(name: str, chunks: Iterable[bytes]) -> dict[str, Any]:
    """Return the metadata of a file that arrives in chunks; take few more of them than its header needs.

    Raises:
        ModelError: As `read_header`.
    """
    content, needed = bytearray(), _FIRST_BYTES
    with _damage_named(name):
        for chunk in chunks:
            content += chunk
            _require_magic(name, bytes(content[: len(_MAGIC)]))
            if len(content) >= needed:
                with suppress(StructError):
                    return _Reader(content, _MOST_BYTES).metadata()
                if (needed := 2 * needed) > _MOST_BYTES:
                    break
        return _Reader(content, len(content)).metadata()


def _require_magic(name: str, begin: bytes) -> None:
    if begin != _MAGIC:
        raise ModelError(f"{name} is not a GGUF file: it does not begin with {_MAGIC.decode()}")


@contextmanager
def _damage_named(name: str) -> Iterator[None]:
    try:
        yield
    except (StructError, _HeaderError) as error:
        reason = str(error) if isinstance(error, _HeaderError) else "it ends within its header"
        raise ModelError(f"{name} is a damaged or incomplete GGUF file: {reason}") from None


class _HeaderError(Exception):
    """The header breaks the format."""


class _Reader:
    """Reads values one after the other; no count is believed that the rest of the file cannot hold.

    `content` is the file of `size` bytes, or the beginning of it: where that ends, StructError is raised.
    """

    def __init__(self, content: mmap.mmap | bytearray, size: int) -> None:
        self._content, self._size, self._place = content, size, len(_MAGIC)
        self._num_left = _MOST_VALUES

    def metadata(self) -> dict[str, Any]:
        version = self._number("I")
        if version not in _VERSIONS:
            raise _HeaderError(f"its version is {version}, must be one of {_VERSIONS}")
        _, number = self._number("Q"), self._number("Q")
        return {self._text(): self._value(self._number("I")) for _ in range(self._num_values(number, 1))}

    def _value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind != _ARRAY:
            return self._number(self._code(kind))
        kind, number = self._number("I"), self._number("Q")
        if kind == _TEXT:
            return [self._text() for _ in range(self._num_values(number, 8))]
        value = Struct(f"<{self._code(kind)}")
        size = self._num_values(number, value.size) * value.size
        return [*chain.from_iterable(value.iter_unpack(self._bytes(size)))]

    def _code(self, kind: int) -> str:
        if kind not in _NUMBERS:
            raise _HeaderError(f"it has a value of the unknown type {kind}")
        return _NUMBERS[kind]

    def _num_values(self, number: int, least_bytes: int) -> int:
        """Return the number of values of a list, each of which takes at least `least_bytes`."""
        self._count(number, least_bytes)
        self._num_left -= number
        if self._num_left < 0:
            raise _HeaderError(f"its lists have more than {_MOST_VALUES} values")
        return number

    def _count(self, number: int, least_bytes: int) -> int:
        if number * least_bytes > self._size - self._place:
            raise _HeaderError(f"it has a list of {number} values, more than the file holds")
        return number

    def _number(self, code: str) -> Any:
        value = Struct(f"<{code}")
        return value.unpack(self._bytes(value.size))[0]

    def _text(self) -> str:
        return self._bytes(self._count(self._number("Q"), 1)).decode("utf-8", "replace")

    def _bytes(self, number: int) -> bytes | bytearray:
        start, self._place = self._place, self._place + number
        if self._place > len(self._content):
            raise StructError
        return self._content[start : self._place]
