"""`python -m tools.metrics_reference`: writes the table of all metrics into the documentation."""

from pathlib import Path

from services.common.telemetry.metrics.catalogue import Told, catalogue

PAGE = Path(__file__).resolve().parent.parent / "docs" / "telemetry.md"
_BEGIN, _END = "<!-- metrics: generated, see the last section -->", "<!-- end of metrics -->"


def table() -> str:
    """One line of Markdown per metric."""
    head = "| metric | kind | labels | told by | what it is |\n|---|---|---|---|---|\n"
    return head + "".join(f"{_row(told)}\n" for told in catalogue())


def with_table(page: str) -> str:
    """The page with the table as it is now."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{table()}{_END}{after}"


def _row(told: Told) -> str:
    family = told.family
    labels = ", ".join(f"`{label}`" for label in family.labels) or "-"
    return f"| `{family.name}` | {family.kind} | {labels} | {', '.join(told.roles)} | {family.help} |"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
