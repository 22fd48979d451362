"""The command line of every scenario: `python -m benchmarks NAME [options]`."""

import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar, get_type_hints

import typer
import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python
from rich.console import Console

from benchmarks.harness.load import interleave
from benchmarks.harness.machine import THREADS, Machine, this_machine
from benchmarks.harness.system import RESULTS, ROOT
from flyserve.bench.progress import progress_bar
from flyserve.cli.terminal import EXIT_FAILED, messages, output, reported_errors
from flyserve.core.errors import ConfigError, quoted
from flyserve.core.wording import requirement
from flyserve.whole_file import check_writable
from services.common.config import parse_yaml, yaml_fault

SCENARIOS = ("acceleration", "capacity", "gpu", "load", "open_loop", "peers", "quality", "real", "soak")
JOINED = ("peers", "real")
"""Scenarios whose parts may be measured by several runs."""
_SAME = ("commit", "cpu", "cores", "versions")
"""Facts of a machine that such runs have in common."""
K = TypeVar("K")
V = TypeVar("V")
PAGES = ROOT / "docs" / "benchmarks"


@dataclass(frozen=True, slots=True)
class Quick:
    """The value of a plan's key in a quick run, as in `repeat: Annotated[int, Quick(1)] = 6`."""

    value: Any


@dataclass(frozen=True, slots=True)
class BasePlan:
    """The amount of measuring: the base of every scenario's plan."""

    def quick(self) -> Self:
        """Return the plan of a quick run."""
        hints = get_type_hints(type(self), include_extras=True)
        notes = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
        found = {name: n.value for name, all_ in notes.items() for n in all_ if isinstance(n, Quick)}
        plans = {name: each for name in notes if isinstance(each := getattr(self, name), BasePlan)}
        return replace(self, **found, **{name: each.quick() for name, each in plans.items()})


@dataclass(frozen=True, slots=True)
class Context:
    """The options and services of one run.

    Attributes:
        machine: The machine, with its load before the run.
        console: Terminal for progress.
        is_quick: The run only shows that the scenario works.
        only: Names of the parts to measure; empty for all.
        verbose: Print the logs of the services.
        earlier: Measured parts of an earlier run, which the page has as well.
        left_out: Lines about what is not here, and so is not measured; with one, the page is not published.
    """

    machine: Machine
    console: Console
    is_quick: bool = False
    only: tuple[str, ...] = ()
    verbose: bool = False
    earlier: Mapping[str, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def chosen(self, names: Sequence[str]) -> list[str]:
        """Return the names that `--part` selects, in their order."""
        return [name for name in names if name in self.only or not self.only]

    def interleave(
        self, label: str, names: Sequence[K], count: int, measure: Callable[[K, int], V], warm_ups: int = 1
    ) -> dict[K, list[V]]:
        """Interleave measurements (`benchmarks.harness.load.interleave`) with a progress bar."""
        with progress_bar(self.console, len(names) * (warm_ups + count), label) as advance:
            return interleave(names, count, measure, warm_ups, advance)

    def leave_out(self, text: str) -> None:
        """Print a line about something that is not here, and remember it."""
        self.left_out.append(text)
        self.say(text)

    def say(self, text: str) -> None:
        """Print a line on stderr."""
        self.console.print(text, markup=False)


def main(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(SCENARIOS)}; without it, a list.")] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="Measure little: it works, the figures mean little.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE of the scenario's plan, as in repeat=9; may repeat."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--part", "--only", help="Part of the scenario; may repeat.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--output", file_okay=False, help="Folder for page, charts and JSON.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print the logs of the services.")] = False,
    join: Annotated[
        bool,
        typer.Option("--join", help="Keep the other parts of an earlier run of this commit (peers, real)."),
    ] = False,
) -> None:
    """Run one scenario: page and charts go to docs/benchmarks, all results to benchmarks/results.

    A run that is quick, partial, without something that it compares, or on a machine that it is not meant for
    writes everything to benchmarks/results, so that it replaces no published page.
    """
    if name in ("", "list"):
        with reported_errors():
            return _list_scenarios()
    os.environ["OMP_NUM_THREADS"] = str(THREADS)  # read by torch, which only some scenarios import
    with reported_errors():
        scenario = load_scenario(name)
        check_parts(name, tuple(getattr(scenario, "PARTS", ())), only or ())
        plan, results = make_plan(name, scenario.Plan, quick, settings or ()), folder or RESULTS
        check_writable(results / f"{name}.json")  # before there is something to lose
        machine = this_machine()
        found = earlier_results(name, results, machine, plan) if join else {"runs": {}, "left_out": []}
        chosen = tuple(only or ())
        context = Context(machine, messages(), quick, chosen, verbose, found["runs"], found["left_out"])
        report = scenario.run(plan, context)
        report.data["left_out"] = context.left_out
        report.data["machine"] = report.data["machine"] or machine
        missing = set(scenario.PARTS) - report.data["runs"].keys() if name in JOINED else only
        is_whole = report.is_published and not (quick or missing or context.left_out)
        pages = folder or (PAGES if is_whole else RESULTS)
        context.say(f"wrote {report.write(pages, results)}")
        for line in dict.fromkeys(context.left_out):
            context.say(f"replaces no published page: {line}")
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
        homes = [each for each in SCENARIOS if name in getattr(load_scenario(each), "PARTS", ())]
        hints = [f"`{each} --part {name}` measures this part" for each in homes]
        hints.append(f"choose one of {', '.join(SCENARIOS)}")
        raise ConfigError(f"there is no scenario {name!r}; {hints[0]}")
    return importlib.import_module(f"benchmarks.scenarios.{name}")


def check_parts(name: str, parts: Sequence[str], only: Sequence[str]) -> None:
    """Check the parts of a scenario that `--part` names.

    Raises:
        ConfigError: The scenario has no such part, or no parts at all.
    """
    for part in only:
        if not parts:
            raise ConfigError(f"--part {part}: {name} has no parts, it is always measured whole")
        if part not in parts:
            raise ConfigError(f"--part {part}: {name} has no such part; its parts are {', '.join(parts)}")


def earlier_results(name: str, folder: Path, machine: Machine, plan: object) -> Mapping[str, Any]:
    """Return the results of an earlier run of this commit, machine and plan: `runs` by part, and `left_out`.

    Raises:
        ConfigError: There are no such results, the scenario has no parts to join, or files differ from the
            commit, so that nobody knows what was measured.
    """
    file = folder / f"{name}.json"
    if name not in JOINED:
        raise ConfigError(f"--join: {name} is measured in one run; only {', '.join(JOINED)} can be joined")
    if not file.is_file():
        raise ConfigError(f"--join: {file} is missing; measure a first part without --join")
    if machine.commit.endswith("-dirty"):
        raise ConfigError(f"--join: files differ from the commit, {machine.commit}: measure all again")
    try:
        found = json.loads(file.read_text("utf-8"))
        theirs, plan_of = [found["machine"][fact] for fact in _SAME], found["plan"]
        results = {key: found[key] for key in ("runs", "left_out")}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"--join: {file} cannot be read ({error}): measure all parts again") from None
    ours = [getattr(machine, fact) for fact in _SAME]
    if ours != theirs or plan_of != to_jsonable_python(plan):
        raise ConfigError(
            f"--join: {file} is of commit {theirs[0]}, {theirs[1]} with {theirs[2]} cores, {theirs[3]}, and"
            f" plan {plan_of}; this run would be of {ours} and {to_jsonable_python(plan)}: measure all again"
        )
    return results


def make_plan(name: str, kind: type[Any], quick: bool, settings: Sequence[str]) -> Any:
    """Return the plan of a scenario, with the values that the command line sets.

    Raises:
        ConfigError: The plan has no such key, or the value does not fit.
    """
    plan = kind().quick() if quick else kind()
    for key, _, value in (each.partition("=") for each in settings):
        plan = _with(name, plan, key, key.split("."), value)
    return plan


def _with(name: str, plan: Any, key: str, path: Sequence[str], value: str) -> Any:
    """Return a plan with another value of a key, which leads through the plans of parts."""
    keys, (first, *rest) = [each.name for each in fields(plan)], path
    is_part = first in keys and isinstance(getattr(plan, first), BasePlan)
    if first not in keys or (rest and not is_part):
        raise ConfigError(f"--set {key}: {name} has no such key; its keys are {', '.join(keys)}")
    if rest:
        return replace(plan, **{first: _with(name, getattr(plan, first), key, rest, value)})
    try:
        kind = get_type_hints(type(plan), include_extras=True)[first]
        return replace(plan, **{first: TypeAdapter(kind).validate_python(parse_yaml(value))})
    except ValidationError as error:
        raise ConfigError(f"--set {key}: is {quoted(value)}, {requirement(error.errors()[0])}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"--set {key}: {quoted(value)} is no value: {yaml_fault(error)}") from None


def _list_scenarios() -> None:
    for name in SCENARIOS:
        summary, _, _ = (load_scenario(name).__doc__ or "").partition("\n")
        output().print(f"{name:<14}{summary}", markup=False)
        if parts := getattr(load_scenario(name), "PARTS", ()):
            output().print(f"{'':<14}--part {', '.join(parts)}", markup=False, style="dim")
