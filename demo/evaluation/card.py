"""The model card, written from the report and the training records."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from demo.corpus import Family, Split
from demo.evaluation.accuracy import Share
from demo.evaluation.measure import FLY, NAMES, NUM_DRAFTS
from demo.evaluation.report import AccuracyRow, Report
from demo.plot import loss_plot
from demo.training.recipes import RECIPES, Recipe
from demo.training.record import TrainingRecord

_PLOT = "loss.svg"
_TEMPLATE = Path(__file__).with_name("card.md")


def write_card(report: Report, models: Path) -> None:
    """Write `README.md` and the plot of the losses into the folder of models."""
    records = {name: TrainingRecord.read(models / name) for name in NAMES}
    (models / _PLOT).write_text(loss_plot({name: records[name].losses for name in NAMES}), encoding="utf-8")
    card = _TEMPLATE.read_text(encoding="utf-8").format(
        sizes=_sizes(report),
        training=_training(records),
        accuracy=_accuracy(report.accuracy),
        agreement=_percent(report.agreement.tokens),
        compared=f"{report.agreement.tokens.trials:,}",
        mismatches=f"{report.agreement.uncertain.trials:,}",
        uncertain=_percent(report.agreement.uncertain),
        deciles=", ".join(f"{value:.2f}" for value in report.agreement.entropy_deciles),
        costs=_costs(report),
        num_drafts=NUM_DRAFTS,
        threshold=FLY.threshold,
        window=FLY.window,
        speculation=_speculation(report),
        shift=f"{RECIPES['drafter'].style.shift:.0%}",
    )
    (models / "README.md").write_text(card, encoding="utf-8")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _percent(share: Share) -> str:
    low, high = share.interval()
    return f"{share.value:.1%} ({low:.1%} to {high:.1%})"


def _sizes(report: Report) -> str:
    rows = [
        [
            name,
            _shape(RECIPES[name]),
            f"{report.parameters[name] / 1e6:.2f} M",
            f"{report.megabytes[name]:.1f} MB",
        ]
        for name in NAMES
    ]
    return _table(("model", "shape", "parameters", "folder"), rows)


def _shape(recipe: Recipe) -> str:
    a = recipe.architecture
    heads = f"{a.heads} heads of {a.head_dim} ({a.kv_heads} key-value)"
    return f"{a.layers} layers x {a.hidden}, {heads}, inner width {a.intermediate}"


def _training(records: dict[str, TrainingRecord]) -> str:
    rows = [
        [
            name,
            f"{record.steps:,}",
            f"{record.tokens / 1e6:.1f} M",
            f"{record.seconds / 60:.0f} min on {record.threads} threads",
            *(f"{_loss_at(record, share):.3f}" for share in (0.1, 0.3, 0.6, 1.0)),
        ]
        for name, record in records.items()
    ]
    return _table(("model", "steps", "tokens", "time", "loss at 10%", "30%", "60%", "end"), rows)


def _loss_at(record: TrainingRecord, share: float) -> float:
    return next(
        loss
        for step, loss in reversed(record.losses)
        if step <= max(share * record.steps, record.losses[0][0])
    )


def _accuracy(rows: Sequence[AccuracyRow]) -> str:
    kinds = dict.fromkeys((row.model, row.dtype, row.split) for row in rows)
    cells = {(row.model, row.dtype, row.split, row.family): row for row in rows}
    lines = []
    for kind in kinds:
        shares = [cells[*kind, family].share for family in Family]
        label = f"{kind[0]}, {kind[1]}" + (", **harder than trained on**" if kind[2] == Split.HARD else "")
        lines.append([label, *map(_percent, shares), str(shares[0].trials)])
    return _table(("model", *(family.replace("_", " ") for family in Family), "n per family"), lines)


def _costs(report: Report) -> str:
    cost = {(row.model, row.dtype): row.milliseconds for row in report.costs}
    lines = [
        [
            dtype,
            f"{cost['target', dtype]:.2f} ms",
            f"{cost['drafter', dtype]:.2f} ms",
            f"1/{cost['target', dtype] / cost['drafter', dtype]:.1f}",
        ]
        for dtype in dict.fromkeys(row.dtype for row in report.costs)
    ]
    return _table(("dtype", "target", "drafter", "ratio"), lines)


def _speculation(report: Report) -> str:
    lines = [
        [
            row.rule,
            f"{row.tau:.2f}",
            f"{row.rescued:,} of {row.tokens:,}",
            f"{row.rejected_by_gate:,} / {row.rejected_by_window:,} / {row.rejected_by_tail:,}",
            _percent(row.share),
            str(row.share.trials),
        ]
        for row in report.speculation
    ]
    head = (
        "rule",
        "tokens per round (tau)",
        "rescued tokens",
        "rejected by gate / window / tail",
        "accuracy",
        "n",
    )
    return _table(head, lines)
