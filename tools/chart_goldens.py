"""Writes what is committed of the chart though it follows from the rest: `make goldens` runs it.

The schema of its values, and what each of its examples renders to.
"""

from tools import chart_schema as schema
from tools.chart import CHART, FOLDER, template

EXAMPLES = tuple(sorted((CHART / "examples").glob("*.yaml")))
RENDERED = FOLDER / "rendered"


def write() -> None:
    """Writes them, and removes what was rendered of examples that are gone."""
    schema.OUTPUT.write_text(schema.rendered(), encoding="utf-8")
    RENDERED.mkdir(exist_ok=True)
    for path in RENDERED.glob("*.yaml"):
        path.unlink()
    for example in EXAMPLES:
        (RENDERED / example.name).write_text(template(example), encoding="utf-8")


if __name__ == "__main__":
    write()
