"""Train the demo pair on CPUs; an interrupted training goes on where it stopped."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from demo.paths import MODELS
from demo.training.allocator import keep_freed_memory
from demo.training.loop import train
from demo.training.recipes import RECIPES


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
