"""`python -m benchmarks.scenarios.simulate.profiled FILE ...`: a router whose stacks are sampled."""

import json
import runpy
import signal
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

from benchmarks.harness.system import ROOT

_PACKAGE_FOLDERS = ("site-packages", f"python{sys.version_info.major}.{sys.version_info.minor}")
_SAMPLE_S = 0.004
"""CPU time of the whole process between two samples."""


class StackSampler:
    """Counts the main thread's stacks, one per few milliseconds of CPU time.

    NOTE: a signal's handler runs between two steps of the interpreter. The time of C code counts for the
    Python function that called it or the next one to run; if there is none, for the event loop.
    """

    def __init__(self) -> None:
        self._stacks: Counter[tuple[CodeType, ...]] = Counter()

    def start(self) -> None:
        """Start sampling."""
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, _SAMPLE_S, _SAMPLE_S)

    def stop(self) -> None:
        """Stop sampling."""
        signal.setitimer(signal.ITIMER_PROF, 0.0)

    def write(self, file: Path) -> None:
        """Write every stack, outermost function first, with its number of samples."""
        named = ((map(_name, stack), seen) for stack, seen in self._stacks.items())
        stacks = [{"stack": list(stack), "samples": seen} for stack, seen in named]
        file.write_text(json.dumps(stacks), encoding="utf-8")

    def _sample(self, number: int, frame: FrameType | None) -> None:
        stack = []
        while frame is not None:
            stack.append(frame.f_code)
            frame = frame.f_back
        self._stacks[tuple(reversed(stack))] += 1


def _name(code: CodeType) -> str:
    """Return module:function, with the module's import name."""
    path = Path(code.co_filename)
    folders = [at for at, part in enumerate(path.parts) if part in _PACKAGE_FOLDERS]
    at = folders[-1] + 1 if folders else len(ROOT.parts) if path.is_relative_to(ROOT) else 0
    return f"{'.'.join(path.with_suffix('').parts[at:])}:{code.co_qualname}"


def main() -> None:
    """Run `python -m router` with the rest of the command line; SIGUSR1 starts the sampling."""
    file, sampler = Path(sys.argv[1]), StackSampler()
    signal.signal(signal.SIGUSR1, lambda number, frame: sampler.start())
    sys.argv = ["router", *sys.argv[2:]]
    try:
        runpy.run_module("router", run_name="__main__")
    finally:
        sampler.stop()
        sampler.write(file)


if __name__ == "__main__":
    main()
