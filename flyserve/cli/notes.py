"""Notes at the start of a deployment: warnings of what is unused, the mode and its effect, the next step."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from flyserve.cli.terminal import messages

if TYPE_CHECKING:
    from orchestration.deployment.file import Deployment
    from services.common.machine.machine import Machine

_EXACT = "--mode exact (in a file: speculation: {mode: exact})"
_KEEPS = {
    "fly": (
        "mode fly: about 4% of the tokens are the drafter's own choices (what that keeps, by kind of problem:"
        f" docs/benchmarks/quality.md); to keep every token of the target: {_EXACT}"
    ),
    "exact": (
        "mode exact: every token is the target's own; --mode fly (in a file: speculation: {mode: fly}) is"
        " faster, and keeps most of them"
    ),
    "plain": f"mode plain: no drafts; {_EXACT} is faster with the same tokens",
    "draft": f"mode draft: every token is the drafter's own; {_EXACT} gives those of the target",
}


def print_notes(deployment: "Deployment", machine: "Machine") -> None:
    """Print warnings of what the deployment leaves unused, and one line about its mode.

    Raises:
        ConfigError: There is too little shared memory.
    """
    from orchestration.machine.settling import require_shared_memory, unused

    require_shared_memory(deployment, machine)
    for warning in unused(deployment, machine):
        messages().print(f"warning: {warning}", markup=False, style="yellow")
    messages().print(mode_note(deployment), markup=False)


def mode_note(deployment: "Deployment") -> str:
    """Return one line: the mode, what it keeps, and how to change it."""
    if deployment.drafter is None:
        return (
            "no drafts: every token is the target's own; --draft suffix (in a file: drafter:"
            " {engine: suffix}), or --draft MODEL, makes it faster"
        )
    return _KEEPS[deployment.speculation.mode.value]


def next_step(deployment: "Deployment") -> Callable[[str], str]:
    """Return a function that gives the command to try, from the address of the gRPC API."""
    from services.common.model_source import model_name

    named = deployment.router.model_name or model_name(deployment.target.model).partition("@")[0]

    def line(address: str) -> str:
        return f'model {named}; try: flyserve generate "Once upon a time" --address {address}'

    return line
