"""Progress bars with the time left."""

from __future__ import annotations

from tqdm import tqdm  # type: ignore[import-untyped]

__all__ = ["tqdm"]
