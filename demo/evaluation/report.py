"""The figures of the model card."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from demo.evaluation.accuracy import Share


@dataclass(frozen=True, slots=True)
class AccuracyRow:
    """Right greedy responses of one model to one split of one family."""

    model: str
    dtype: str
    split: str
    family: str
    share: Share


@dataclass(frozen=True, slots=True)
class SpeculationRow:
    """One rule's tokens per round (tau), its mismatches and its accuracy."""

    rule: str
    tau: float
    tokens: int
    rescued: int
    rejected_by_gate: int
    rejected_by_window: int
    rejected_by_tail: int
    share: Share


@dataclass(frozen=True, slots=True)
class CostRow:
    """A model's one-token forward."""

    model: str
    dtype: str
    milliseconds: float


@dataclass(frozen=True, slots=True)
class AgreementRow:
    """Comparison of the drafter with the target on the target's own responses.

    Attributes:
        tokens: Positions at which both take the same token.
        uncertain: Mismatches at which the target's entropy reaches FLy's threshold.
        entropy_deciles: Nine deciles of the target's top-3 entropy at the mismatches, in nats.
    """

    tokens: Share
    uncertain: Share
    entropy_deciles: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that the model card states, apart from the training itself."""

    parameters: dict[str, int]
    megabytes: dict[str, float]
    accuracy: tuple[AccuracyRow, ...]
    costs: tuple[CostRow, ...]
    agreement: AgreementRow
    speculation: tuple[SpeculationRow, ...]

    def write(self, path: Path) -> None:
        """Write the figures as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "Report":
        """Read the figures back."""
        record = json.loads(path.read_text(encoding="utf-8"))
        agreement = record["agreement"]
        return cls(
            parameters=record["parameters"],
            megabytes=record["megabytes"],
            accuracy=tuple(AccuracyRow(**_with_share(row)) for row in record["accuracy"]),
            costs=tuple(CostRow(**row) for row in record["costs"]),
            agreement=AgreementRow(
                Share(**agreement["tokens"]),
                Share(**agreement["uncertain"]),
                tuple(agreement["entropy_deciles"]),
            ),
            speculation=tuple(SpeculationRow(**_with_share(row)) for row in record["speculation"]),
        )


def _with_share(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "share": Share(**row["share"])}
