"""Paths of the shipped files."""

from __future__ import annotations

from pathlib import Path

MODELS = Path(__file__).parent / "models"
