"""Several ways of drafting side by side: one target, and a drafter and a router for each of them.

All of it is the services' own commands with static addresses. A replica to which no request goes is idle and
costs nothing, so that every way can be measured by turns.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.acceleration.settings import Drafting, SubDrafting
from benchmarks.paths import ROOT
from flyserve.cli.terminal import messages
from flyserve.client import Client
from orchestration.local.processes import StopSignals, service_process

_START_TIMEOUT_S = 180.0
_GRACE_S = 20.0
_MEMORY = ("--max-sequences", "8", "--kv-tokens", "8192")

Flags = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Models:
    """What the tiers run, as the flags of their commands.

    Attributes:
        sub_drafter: Of engine model; None where none is asked for.
        tokenizer: Model folder that the routers take theirs from.
    """

    target: Flags
    drafter: Flags
    sub_drafter: Flags | None
    tokenizer: Path


def model_flags(folder: Path, dtype: str) -> Flags:
    """Of a model in one thread."""
    return ("--model", str(folder), "--dtype", dtype, "--threads", "1", *_MEMORY)


def simulated_flags(parameters: Mapping[str, Any]) -> Flags:
    """Of a simulated model."""
    return ("--simulated", json.dumps(dict(parameters)), *_MEMORY)


@contextmanager
def running_services(models: Models, draftings: Sequence[Drafting]) -> Iterator[dict[Drafting, Client]]:
    """A client of each way of drafting; the services run while the block does. From the main thread only.

    Raises:
        ConfigError: A service ended, with its last line.
        NotReady: One did not serve in time.
    """
    with StopSignals() as signals, ExitStack() as stack:
        try:
            with messages().status("starting the services"):
                folder = Path(stack.enter_context(TemporaryDirectory(prefix="flyserve-")))
                services = _Services(stack, folder)
                addresses = _start(services, models, draftings)
            yield {way: stack.enter_context(Client(address)) for way, address in addresses.items()}
        finally:
            # NOTE: before the stack unwinds: nothing may interrupt the stop.
            signals.ignore()


def _start(services: "_Services", models: Models, draftings: Sequence[Drafting]) -> dict[Drafting, str]:
    helpers = sorted({way.sub_drafting for way in draftings} - {SubDrafting.OFF})
    target, *helping = services.start(
        [("services.target", *models.target), *(_helper_command(helper, models) for helper in helpers)]
    )
    helped = dict(zip(helpers, helping, strict=True))
    drafters = services.start([_drafter_command(way, models, helped) for way in draftings])
    routers = services.start([_router_command(models.tokenizer, target, drafter) for drafter in drafters])
    return dict(zip(draftings, routers, strict=True))


def _helper_command(sub_drafting: SubDrafting, models: Models) -> Flags:
    if sub_drafting is not SubDrafting.MODEL:
        return ("services.sub_drafter", "--engine", sub_drafting.value)
    assert models.sub_drafter is not None, "somebody has to help"
    return ("services.drafter", "--role", "sub_drafter", "--draft-ahead", "off", *models.sub_drafter)


def _drafter_command(drafting: Drafting, models: Models, helped: Mapping[SubDrafting, str]) -> Flags:
    helper = helped.get(drafting.sub_drafting)
    flags = ("--draft-ahead", "on" if drafting.is_ahead else "off")
    return ("services.drafter", *models.drafter, *flags, *(("--sub-drafter", helper) if helper else ()))


def _router_command(tokenizer: Path, target: str, drafter: str) -> Flags:
    return ("router", "--model", str(tokenizer), "--target", target, "--drafter", drafter, "--grpc-port", "0")


class _Services:
    """Processes that end with a stack of contexts."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        """Their logs go into folders of their own below `folder`."""
        self._stack = stack
        self._folder = folder
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        self._num_started = 0

    def start(self, commands: Sequence[Flags]) -> list[str]:
        """Starts them side by side; their addresses, once all serve."""
        with ThreadPoolExecutor(len(commands)) as pool:
            # NOTE: a stack takes contexts over from any thread; if one fails, the others end with it.
            started = [
                pool.submit(self._stack.enter_context, service_process(*self._arguments(command)))
                for command in commands
            ]
        return [process.result().address for process in started]

    def _arguments(self, command: Flags) -> tuple[Flags, Mapping[str, str], Path, float, float]:
        folder = self._folder / str(self._num_started)
        folder.mkdir()
        self._num_started += 1
        return command, self._environment, folder, _START_TIMEOUT_S, _GRACE_S
