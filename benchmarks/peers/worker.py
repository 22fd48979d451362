"""`python -m benchmarks.peers.worker`: one peer in a process of its own, told what to do line by line.

The first line that it writes says that it is ready; then a line of JSON answers each that it reads.
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import torch


def main() -> None:
    """Serves stdin until it ends; what libraries print goes to stderr."""
    spec = json.loads(sys.argv[1])
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        torch.set_num_threads(1)
        peer = _make(spec)
        _write(answers, peer.describe())
        for line in sys.stdin:
            _write(answers, _answer(peer, json.loads(line)))


def _make(spec: dict[str, Any]) -> Any:
    from benchmarks.peers.in_process import InProcess
    from benchmarks.peers.transformers_peer import TransformersPeer
    from benchmarks.peers.verification import VerificationRig

    kind, target, drafter = spec["kind"], Path(spec["target"]), Path(spec["drafter"])
    if kind == "transformers":
        return TransformersPeer(target, drafter, spec["dtype"], spec["method"])
    kinds: dict[str, Any] = {"in process": InProcess, "verification": VerificationRig}
    return kinds[kind](target, drafter, spec["dtype"])


def _answer(peer: Any, command: dict[str, Any]) -> Any:
    do = command.pop("do")
    result = getattr(peer, do)(**command)
    return asdict(result) if do == "decode" else result


def _write(answers: IO[str], data: Any) -> None:
    answers.write(json.dumps(data) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
