"""Muon for the matrices of the layers, AdamW for everything else, one schedule for both."""

from typing import Any

import torch
from torch import nn

from demo.training.recipes import Schedule


class PairedOptimizer:
    """Two optimisers that step together."""

    def __init__(self, model: nn.Module, schedule: Schedule) -> None:
        matrices = [p for name, p in model.named_parameters() if ".layers." in name and p.ndim == 2]
        chosen = {id(p) for p in matrices}
        others = [p for p in model.parameters() if id(p) not in chosen]
        self._schedule = schedule
        self._muon = torch.optim.Muon(matrices, lr=schedule.matrix_rate, weight_decay=0.0)
        self._adam = torch.optim.AdamW(others, lr=schedule.other_rate, betas=(0.9, 0.95), weight_decay=0.0)

    def step(self, step: int) -> None:
        """Apply the gradients at the rates of a step, and clear them."""
        factor = self._schedule.factor(step)
        peaks = (self._schedule.matrix_rate, self._schedule.other_rate)
        for optimizer, peak in zip((self._muon, self._adam), peaks, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Both states."""
        return {"muon": self._muon.state_dict(), "adam": self._adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore both states."""
        self._muon.load_state_dict(state["muon"])
        self._adam.load_state_dict(state["adam"])
