"""The demo pair: the text it learns from, its training, its evaluation, its weights and its tasks."""

from pathlib import Path

MODELS = Path(__file__).parent / "models"
"""Folder of the shipped models."""
