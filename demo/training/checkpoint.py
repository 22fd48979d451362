"""Checkpoints that are either whole or absent."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from demo.training.optimizer import PairedOptimizer


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a training: `step` is the next one to do."""

    step: int
    seconds: float


def save(path: Path, at: Checkpoint, model: nn.Module, optimizer: PairedOptimizer) -> None:
    """Write a checkpoint, replacing the last one in a single act."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    state: dict[str, Any] = {
        "step": at.step,
        "seconds": at.seconds,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    torch.save(state, partial)
    os.replace(partial, path)


def resume(path: Path, model: nn.Module, optimizer: PairedOptimizer) -> Checkpoint:
    """Restore the last checkpoint, if there is one, and return its state."""
    if not path.exists():
        return Checkpoint(step=0, seconds=0.0)
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return Checkpoint(step=state["step"], seconds=state["seconds"])
