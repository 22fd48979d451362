"""Measure the demo pair and write its model card."""

import argparse

import torch

from demo import MODELS
from demo.evaluation.card import write_card
from demo.evaluation.measure import measure
from demo.evaluation.report import Report

_REPORT = MODELS / "report.json"


def main() -> None:
    """Run the command line."""
    arguments = _parse()
    torch.set_num_threads(arguments.threads)
    if not arguments.card_only:
        measure(MODELS, arguments.per_family, arguments.speculated).write(_REPORT)
    write_card(Report.read(_REPORT), MODELS)
    print(MODELS / "README.md")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m demo.evaluate",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--per-family", type=int, default=500, help="held-out problems of each family")
    parser.add_argument(
        "--speculated", type=int, default=100, help="of these, how many for the pair's figures"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="CPU threads")
    parser.add_argument("--card-only", action="store_true", help="write the card from the last report")
    return parser.parse_args()


if __name__ == "__main__":
    main()
