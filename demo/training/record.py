"""The record of a training: how long it took and how the loss went down."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

FILE_NAME = "training_record.json"


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """The record that is kept of a training, next to the weights.

    Attributes:
        steps: Steps done.
        tokens: Tokens seen, prompts and padding included.
        seconds: Wall time, on `threads` threads.
        threads: CPU threads.
        losses: Step and mean training loss up to it since the last entry.
    """

    steps: int
    tokens: int
    seconds: float
    threads: int
    losses: tuple[tuple[int, float], ...]

    def write(self, folder: Path) -> None:
        """Write the record into a model folder."""
        (folder / FILE_NAME).write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> "TrainingRecord":
        """Read the record of a model folder."""
        record = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))
        record["losses"] = tuple(map(tuple, record["losses"]))
        return cls(**record)


def read_losses(log: Path, num_points: int = 40) -> tuple[tuple[int, float], ...]:
    """Average a log of losses down to about `num_points`; of a step done twice the later line counts."""
    by_step = {entry["step"]: entry["loss"] for entry in map(json.loads, log.read_text().splitlines())}
    entries = sorted(by_step.items())
    size = max(1, len(entries) // num_points)
    groups = [entries[start : start + size] for start in range(0, len(entries), size)]
    return tuple((group[-1][0], round(sum(loss for _, loss in group) / len(group), 4)) for group in groups)
