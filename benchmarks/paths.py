"""Where benchmarks find models and put what they make."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
DEMO_MODELS = ROOT / "demo" / "models"


def report_folder(output: Path | None, quick: bool) -> Path:
    """Where a report goes; that of a quick run must not replace the figures of a real one."""
    return output or (BUILD if quick else ROOT / "docs") / "benchmarks"
