"""`python -m benchmarks.balancing`: what each balancing policy makes of prompts that share prefixes."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from benchmarks.balancing.load import SEQUENCE_TOKENS, Load, Outcome, play
from benchmarks.balancing.system import running
from benchmarks.svg import bar_chart
from flyserve.bench.progress import Advance, progress_bar
from flyserve.cli.terminal import messages, output
from router.policies import POLICIES

REPLICAS, CACHED = 4, 6
EXPONENTS = (0.5, 0.7, 1.0)
_PLACE = Path(__file__).resolve().parent.parent.parent / "docs" / "benchmarks"

Outcomes = Mapping[str, Mapping[float, Outcome]]
"""By policy and exponent."""


def main(
    requests: Annotated[int, typer.Option(min=1, help="Of each policy under each load.")] = 400,
    folder: Annotated[
        Path, typer.Option("--output", file_okay=False, help="Where report, figures and chart go.")
    ] = _PLACE,
) -> None:
    """Compare the balancing policies by prefix-cache hit rate and evenness, with simulated replicas."""
    total = requests * len(POLICIES) * len(EXPONENTS)
    with progress_bar(messages(), total) as advance:
        outcomes = asyncio.run(measure(Load(requests=requests), advance))
    write(outcomes, requests, folder)
    output().print(_table(outcomes))


async def measure(load: Load, advance: Advance) -> Outcomes:
    """Every policy under every load, each with caches that are empty at first."""
    return {
        policy: {
            exponent: await measure_one(policy, Load(load.requests, exponent=exponent), advance)
            for exponent in EXPONENTS
        }
        for policy in POLICIES
    }


async def measure_one(policy: str, load: Load, advance: Advance = lambda: None) -> Outcome:
    """One policy, where each replica has memory for `CACHED` sequences, open or cached."""
    async with running(policy, REPLICAS, CACHED * SEQUENCE_TOKENS) as system:
        return await play(system, load, advance)


def write(outcomes: Outcomes, requests: int, folder: Path) -> None:
    """Writes the report as Markdown, the figures as JSON, the hit rates as a chart."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = {policy: {str(e): asdict(o) for e, o in row.items()} for policy, row in outcomes.items()}
    (folder / "balancing.json").write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    rates = {
        f"{policy}, exponent {e:g}": (100 * o.hit_rate,) * 3
        for policy, row in outcomes.items()
        for e, o in row.items()
    }
    chart = bar_chart("Prefix-cache hit rate", "% of prompt tokens", rates)
    (folder / "balancing.svg").write_text(chart, encoding="utf-8")
    (folder / "balancing.md").write_text(_markdown(outcomes, requests), encoding="utf-8")


def _bars(outcomes: Outcomes) -> dict[str, tuple[float, float, float]]:
    return {
        f"{policy}, exponent {exponent:g}": (100 * outcome.hit_rate,) * 3
        for policy, row in outcomes.items()
        for exponent, outcome in row.items()
    }


def _markdown(outcomes: Outcomes, requests: int) -> str:
    header = "| policy | " + " | ".join(f"exponent {e:g}" for e in EXPONENTS) + " |"
    rows = [f"| `{policy}` | " + " | ".join(_cells(row)) + " |" for policy, row in outcomes.items()]
    lines = [
        "# Balancing policies and the prefix cache",
        "",
        f"`python -m benchmarks.balancing`: {REPLICAS} simulated targets behind a real router, over real"
        f" sockets, each with KV memory for {CACHED} sequences, open or cached; 20 prefixes of 11 blocks,"
        f" asked for by Zipf's law in {requests} requests of 4 clients. In each cell, by the engines' own"
        " counters: the share of prompt tokens taken from a cache, and the work of the busiest replica as a"
        " multiple of the mean.",
        "",
        header,
        "|---|" + "---|" * len(EXPONENTS),
        *rows,
        "",
        "The steeper the law, the more of it a cache catches by chance: of 20 prefixes at exponent 1, six"
        " hold two thirds of all requests.",
        "",
        "![Hit rates](balancing.svg)",
        "",
    ]
    return "\n".join(lines)


def _table(outcomes: Outcomes) -> Table:
    table = Table(title="hit rate, busiest / mean", title_justify="left", box=box.SIMPLE)
    table.add_column("policy")
    for exponent in EXPONENTS:
        table.add_column(f"exponent {exponent:g}", justify="right")
    for policy, row in outcomes.items():
        table.add_row(policy, *_cells(row))
    return table


def _cells(row: Mapping[float, Outcome]) -> list[str]:
    return [f"{outcome.hit_rate:.1%}, {outcome.busiest:.2f}x" for outcome in row.values()]


if __name__ == "__main__":
    typer.run(main)
