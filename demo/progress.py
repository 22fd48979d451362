"""Progress bars with the time left."""

from tqdm import tqdm  # type: ignore[import-untyped]

__all__ = ["tqdm"]
