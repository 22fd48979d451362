"""What was measured, a line of JSON per problem and setting, so that a run goes on where it stopped."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fly.response import Statistics
from fly.types import Token, Verdict


@dataclass(frozen=True, slots=True)
class Rescue:
    """A token that FLy kept against the target's choice.

    Attributes:
        start: Where its text begins in the response.
        text: Its text.
        choice: The text that the target would have taken.
        entropy: The target's, there.
    """

    start: int
    text: str
    choice: str
    entropy: float

    @property
    def is_content(self) -> bool:
        """Whether a digit is at stake: here wording is free, but a digit never is."""
        return any(character.isdigit() for character in self.text + self.choice)


@dataclass(frozen=True, slots=True)
class Record:
    """One problem under one setting."""

    problem: str
    is_solved: bool
    seconds: float
    response: str
    rescues: tuple[Rescue, ...]
    statistics: Statistics


def find_rescues(tokens: Sequence[Token]) -> tuple[Rescue, ...]:
    """Every rescued token of a response with its place in the text."""
    rescues, start = [], 0
    for token in tokens:
        if token.verdict is Verdict.RESCUED:
            rescues.append(Rescue(start, token.text, token.choice_text, token.entropy))
        start += len(token.text)
    return tuple(rescues)


class RecordFile:
    """The records of one setting; a line that a crash cut short is dropped and measured again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.records: dict[str, Record] = {}
        if path.exists():
            self._read()

    def append(self, record: Record) -> None:
        """Keeps a record at once."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record), ensure_ascii=False) + "\n")
        self.records[record.problem] = record

    def _read(self) -> None:
        text = self._path.read_text(encoding="utf-8")
        whole, _, cut_short = text.rpartition("\n")
        if cut_short:
            self._path.write_text(whole + "\n" * bool(whole), encoding="utf-8")
        for line in whole.splitlines():
            record = _from_json(json.loads(line))
            self.records[record.problem] = record


def _from_json(data: dict[str, Any]) -> Record:
    rescues = tuple(Rescue(**rescue) for rescue in data["rescues"])
    return Record(**{**data, "rescues": rescues, "statistics": Statistics(**data["statistics"])})
