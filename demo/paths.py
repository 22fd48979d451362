"""Where the shipped files lie."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path(__file__).parent
MODELS = _ROOT / "models"
TASKS = _ROOT / "tasks" / "held_out.jsonl"
