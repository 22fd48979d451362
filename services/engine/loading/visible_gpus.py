"""The GPUs that torch may find in this process; imports no torch, which reads them once."""

import os
from collections.abc import MutableMapping


def hide_gpus(device: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Hide all GPUs from a process that computes on the CPU, before it imports torch.

    Otherwise transformers would split a sharded model over GPUs, because the machine has some.
    """
    if device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
