"""Write the committed files of the chart that follow from the code: `make goldens` runs it.

They are the schema of its values, the constants of its templates, and the rendered examples.
"""

from tools import chart_constants, chart_schema
from tools.chart import CHART, FOLDER, template

EXAMPLES = tuple(sorted((CHART / "examples").glob("*.yaml")))
RENDERED = FOLDER / "rendered"


def write() -> None:
    """Write them, and remove the rendered files of examples that no longer exist."""
    for generated in (chart_schema, chart_constants):
        generated.OUTPUT.write_text(generated.rendered(), encoding="utf-8")
    RENDERED.mkdir(exist_ok=True)
    for path in RENDERED.glob("*.yaml"):
        path.unlink()
    for example in EXAMPLES:
        (RENDERED / example.name).write_text(template(example), encoding="utf-8")


if __name__ == "__main__":
    write()
