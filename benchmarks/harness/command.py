"""The command line of every scenario: `python -m benchmarks NAME [options]`."""

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import torch
import typer
import yaml
from pydantic import TypeAdapter, ValidationError
from rich.console import Console

from benchmarks.harness.machine import Machine, this_machine
from benchmarks.harness.parts import Parts
from benchmarks.harness.system import RESULTS, ROOT
from fly.errors import ConfigError
from flyserve.cli.terminal import EXIT_FAILED, START_FIRST, messages, output, reported_errors

SCENARIOS = (
    "acceleration",
    "balancing",
    "load",
    "overload",
    "peers",
    "quality",
    "simulate",
    "soak",
    "telemetry",
)
PAGES = ROOT / "docs" / "benchmarks"


@dataclass(frozen=True, slots=True)
class Context:
    """The options and services of one run.

    Attributes:
        machine: The machine, with its load before the run.
        parts: Parts that `--resume` reuses.
        console: Terminal for progress.
        is_quick: The run only shows that the scenario works.
        only: Names of the parts to measure; empty for all.
        address: host:port of a running deployment; None starts what the scenario needs.
        verbose: Print the logs of the services.
    """

    machine: Machine
    parts: Parts
    console: Console
    is_quick: bool = False
    only: tuple[str, ...] = ()
    address: str | None = None
    verbose: bool = False

    def chosen(self, names: Sequence[str]) -> list[str]:
        """Return the names that `--only` selects, in their order.

        Raises:
            ConfigError: `--only` has an unknown name.
        """
        for name in self.only:
            if name not in names:
                raise ConfigError(f"--only: is {name!r}, must be one of {', '.join(names)}")
        return [name for name in names if name in self.only or not self.only]

    def say(self, text: str) -> None:
        """Print a line on stderr."""
        self.console.print(text, markup=False)


def main(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(SCENARIOS)}; without it, a list.")] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="Measure little: it works, the figures mean little.")
    ] = False,
    repeat: Annotated[
        int | None, typer.Option(min=1, help="Repetitions of every measurement (`repeat` of the plan).")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE of the scenario's plan; may repeat.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="Part of the scenario; may repeat.")] = None,
    folder: Annotated[
        Path | None, typer.Option("--output", file_okay=False, help="Folder for page, charts and JSON.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Reuse the parts that an interrupted run of this code measured.")
    ] = False,
    address: Annotated[
        str | None, typer.Option(help="host:port of a running deployment (quality); by default the demo.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print the logs of the services.")] = False,
) -> None:
    """Run one scenario: page and charts go to docs/benchmarks, all results to benchmarks/results.

    A quick or partial run writes everything to benchmarks/results, so that it replaces no published page.
    """
    if not name:
        _list_scenarios()
        return
    torch.set_num_threads(1)
    is_partial = quick or bool(only)
    pages, results = folder or (RESULTS if is_partial else PAGES), folder or RESULTS
    with reported_errors(START_FIRST):
        scenario = load_scenario(name)
        plan = make_plan(name, scenario.Plan, quick, repeat, settings or ())
        parts = Parts(RESULTS / "parts" / name, repr(plan), resume)
        context = Context(this_machine(), parts, messages(), quick, tuple(only or ()), address, verbose)
        report = scenario.run(plan, context)
        context.say(f"wrote {report.write(pages, results)}")
        parts.clear()
    for table in report.tables:
        output().print(table.rich())
    for fault in report.faults:
        context.say(fault)
    if report.faults:
        sys.exit(EXIT_FAILED)


def load_scenario(name: str) -> Any:
    """Import a scenario: a module with the class `Plan` and the function `run`.

    Raises:
        ConfigError: There is no scenario of this name.
    """
    if name not in SCENARIOS:
        raise ConfigError(f"there is no scenario {name!r}; choose one of {', '.join(SCENARIOS)}")
    return importlib.import_module(f"benchmarks.scenarios.{name}")


def make_plan(name: str, kind: type[Any], quick: bool, repeat: int | None, settings: Sequence[str]) -> Any:
    """Return the plan of a scenario, with the values that the command line sets.

    Raises:
        ConfigError: The plan has no such key, or the value does not fit.
    """
    plan = kind().quick() if quick else kind()
    said = [*settings, f"repeat={repeat}"] if repeat is not None else settings
    keys, hints = [each.name for each in fields(kind)], get_type_hints(kind, include_extras=True)
    for key, _, value in (each.partition("=") for each in said):
        if key not in keys:
            raise ConfigError(f"--set {key}: {name} has no such key; its keys are {', '.join(keys)}")
        try:
            parsed = TypeAdapter(hints[key]).validate_python(yaml.safe_load(value))
        except (ValidationError, yaml.YAMLError) as error:
            raise ConfigError(f"--set {key}: {value!r} does not fit: {error}") from None
        plan = replace(plan, **{key: parsed})
    return plan


def _list_scenarios() -> None:
    for name in SCENARIOS:
        summary, _, _ = (load_scenario(name).__doc__ or "").partition("\n")
        output().print(f"{name:<14}{summary}", markup=False)
