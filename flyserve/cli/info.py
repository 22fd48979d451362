"""`flyserve info`: models, defaults and limits of a deployment, live."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from flyserve.cli.groups import grouped
from flyserve.cli.options import ConnectionOptions, time_option
from flyserve.cli.show import print_json, to_plain
from flyserve.cli.terminal import output, reported_errors
from flyserve.cli.watching import keep_printing, keep_watching
from flyserve.client import Client
from flyserve.core.break_even import break_even
from flyserve.core.messages import ModelInfo
from flyserve.core.presets import PRESETS
from flyserve.core.request import SpeculationParams
from flyserve.core.response import DeploymentInfo

EXAMPLES = """Examples:

flyserve info

flyserve info --watch --every-s 1

flyserve info --json | jq .deployment.target.model_id"""

_TIMEOUT_S = 10.0
_FIRST = ("mode", "preset", "draft_length.max")


@dataclass(frozen=True, slots=True)
class Status:
    """Answer of a deployment, and the time until it arrived."""

    deployment: DeploymentInfo
    answered_in_s: float


@grouped
def info(
    connection: ConnectionOptions,
    watch: Annotated[bool, typer.Option("--watch", help="Update until Ctrl-C.")] = False,
    every_s: Annotated[float, time_option(min=0.1, help="Seconds between updates.")] = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per update.")] = False,
) -> None:
    """Show what a deployment serves: its models, the defaults of a request, and its limits."""
    with reported_errors(), connection.client() as client:
        timeout_s = connection.timeout_s or _TIMEOUT_S
        if not watch:
            look = read_status(client, timeout_s)
            print_json(look) if as_json else output().print(view(look))
        elif as_json:
            keep_printing(lambda: read_status(client, timeout_s), every_s)
        else:
            keep_watching(lambda: view(read_status(client, timeout_s)), every_s)


def read_status(client: Client, timeout_s: float) -> Status:
    """Request the status; raises FlyServeError if nothing answers, or nothing is served at present."""
    started = time.monotonic()
    deployment = client.info(timeout_s)
    return Status(deployment, time.monotonic() - started)


def view(status: Status) -> RenderableType:
    """Return the picture of a status, one section after the other."""
    deployment = status.deployment
    return Group(
        Text(f"FlyServe {deployment.target.version}, answered in {status.answered_in_s * 1000:.0f} ms"),
        _model("target", deployment.target),
        _model("drafter", deployment.drafter),
        *_break_even(deployment),
        *(Text(warning, style="yellow") for warning in deployment.warnings),
        _pairs("by default", _defaults(deployment.default_speculation)),
        _pairs("at most", _limits(deployment)),
    )


def _model(tier: str, model: ModelInfo | None) -> Text:
    if model is None:
        return Text.assemble((f"{tier}: ", "dim"), "none at present, so responses are decoded without drafts")
    context = f"{model.context_length:,} tokens" if model.context_length else "unlimited"
    looks_up = not model.weight_fingerprint
    parts = (
        "looks tokens up, without a model" if looks_up else model.architecture,
        model.quantization or model.dtype,
        f"engine {model.engine} {model.engine_version}" if model.engine else "",
        "" if looks_up else f"row_invariant {str(model.row_invariant).lower()}",
        f"context {context}",
        "" if looks_up else f"vocabulary {model.vocab_size:,}",
        "" if looks_up else f"weights {model.weight_fingerprint[:12]}",
        f"kernels {model.kernels[:8]}" if model.kernels else "",
        "answers by itself in mode draft" if model.standalone_sequences else "",
        f"maps its vocabulary by {model.vocabulary_way}, overlap {model.vocabulary_overlap:.0%}"
        if model.vocabulary_way
        else "",
    )
    listed = ", ".join(part for part in parts if part)
    return Text.assemble((f"{tier}: ", "dim"), (model.model_id, "bold"), f" ({listed})")


def _break_even(deployment: DeploymentInfo) -> Iterator[Text]:
    """Yield the line about the tau from which speculation pays, if the models report their costs."""
    length = deployment.default_speculation.draft_length.max
    found = break_even(deployment.target, deployment.drafter, length or 0)
    if found is not None:
        yield Text(found.describe(), style="" if found.can_pay else "yellow")


def _pairs(title: str, values: dict[str, object]) -> Text:
    listed = ", ".join(f"{_words(name)} {_shown(value)}" for name, value in values.items())
    return Text.assemble((f"{title}: ", "dim"), listed)


def _words(name: str) -> str:
    return name.removesuffix(".max").replace("_", " ").replace(".", " ")


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return " and ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else f"{value}"


def _defaults(params: SpeculationParams) -> dict[str, object]:
    """Return the values of a request that sets none; those of the preset's own rule are left out."""
    rule = to_plain(PRESETS[params.preset]) if params.preset in PRESETS else {}
    flat = {name: value for name, value in _flat(to_plain(params)).items() if rule.get(name) != value}
    return {**{name: flat.pop(name) for name in _FIRST if name in flat}, **flat}


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, object]:
    """Return nested values by their dotted names, without those that are not set and empty lists."""
    flat: dict[str, object] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return {name: value for name, value in flat.items() if value is not None and value != []}


def _limits(deployment: DeploymentInfo) -> dict[str, object]:
    names = [each.name for each in fields(deployment) if each.name.endswith("_limit")]
    return {name.removesuffix("_limit"): getattr(deployment, name) for name in names}
