"""Train the demo models on CPUs; an interrupted training goes on where it stopped."""

import argparse
import ctypes
import sys
from pathlib import Path

import torch

from demo import MODELS
from demo.training.loop import train
from demo.training.recipes import RECIPES

_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4


def keep_freed_memory() -> None:
    """Set glibc's malloc neither to map large blocks one by one nor to return freed memory."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def main() -> None:
    """Run the command line."""
    arguments = _parse()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    for name in RECIPES if arguments.model == "all" else [arguments.model]:
        if not train(RECIPES[name], arguments.work_dir, arguments.models_dir / name):
            break


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m demo.train",
        description=__doc__,
        epilog="Measure the result and write the model card with `python -m demo.evaluate`.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--model", choices=[*RECIPES, "all"], default="all", help="which model to train")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="CPU threads")
    parser.add_argument(
        "--work-dir", type=Path, default=Path(".cache/demo"), help="checkpoints and loss logs"
    )
    parser.add_argument("--models-dir", type=Path, default=MODELS, help="where the model folders are written")
    return parser.parse_args()


if __name__ == "__main__":
    main()
