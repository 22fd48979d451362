"""The environment that torch, CUDA and the OpenMP library read once, when they start. Imports no torch."""

import os
from collections.abc import MutableMapping

_SPIN_COUNT = "20000"
"""Turns for which a thread of OpenMP waits actively for its next work: about a quarter of a millisecond.

That spans the gaps between the operators of a forward, not the wait for the next message. By default threads
spin for milliseconds: a target and a drafter of two threads each took turns on two cores, operator by
operator, and forwards took up to twenty times as long. Without any spinning plain decoding is half as fast.
"""


def set_environment(device: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Set what a process needs before it imports torch.

    A process that computes on the CPU sees no GPU: transformers would split a sharded model over GPUs,
    because the machine has some. CUDA numbers GPUs as the driver's tool lists them (`find_gpus`), by their
    places on the PCI bus; by default it begins with the fastest. What the user says of the order, or of
    waiting threads, is kept.
    """
    if device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    environment.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)
