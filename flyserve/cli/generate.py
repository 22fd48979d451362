"""`flyserve generate`: one prompt, its response streamed with coloured verdicts."""

import sys
from typing import Annotated

import typer

from fly.presets import PRESETS
from fly.types import Coupling, DraftLengthPolicy, Mode, Tail
from flyserve.cli.show import print_json, show, show_choices
from flyserve.cli.terminal import DEFAULT_ADDRESS, reported_errors
from flyserve.client import Client
from flyserve.types import Sampling, Speculation

_SAMPLING = "Sampling"
_SPECULATION = "Speculation"
_LARGEST_SEED = 2**64 - 1


def generate(
    prompt: Annotated[str, typer.Argument(help="What to continue; - reads it from standard input.")],
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Longest response in tokens.")] = None,
    n: Annotated[int, typer.Option("--n", min=1, help="Choices, made side by side.")] = 1,
    stop: Annotated[
        list[str] | None, typer.Option(help="The response ends before this text; may repeat.")
    ] = None,
    temperature: Annotated[
        float, typer.Option(min=0, help="0 takes the likeliest token.", rich_help_panel=_SAMPLING)
    ] = 0.0,
    top_k: Annotated[
        int, typer.Option(min=0, help="Keep the k likeliest tokens; 0: all.", rich_help_panel=_SAMPLING)
    ] = 0,
    top_p: Annotated[
        float, typer.Option(help="Keep the likeliest tokens up to this share.", rich_help_panel=_SAMPLING)
    ] = 1.0,
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=_LARGEST_SEED, help="Same seed, same noise.", rich_help_panel=_SAMPLING),
    ] = None,
    coupling: Annotated[
        Coupling, typer.Option(help="Of drafter and target.", rich_help_panel=_SAMPLING)
    ] = Coupling.SHARED_NOISE,
    mode: Annotated[Mode | None, typer.Option(help="How to decode.", rich_help_panel=_SPECULATION)] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help=f"Named rule that fly starts from: {', '.join(PRESETS)}.", rich_help_panel=_SPECULATION
        ),
    ] = None,
    draft_length: Annotated[
        int | None, typer.Option(min=0, help="Draft tokens per round.", rich_help_panel=_SPECULATION)
    ] = None,
    draft_length_policy: Annotated[
        DraftLengthPolicy | None,
        typer.Option(help="Who says how long a draft is.", rich_help_panel=_SPECULATION),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(min=1, help="Matches that must follow a mismatch.", rich_help_panel=_SPECULATION),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(min=0, help="Entropy below which a mismatch is refused.", rich_help_panel=_SPECULATION),
    ] = None,
    tail: Annotated[
        Tail | None,
        typer.Option(help="Of a window that the draft cuts short.", rich_help_panel=_SPECULATION),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole response as JSON.")] = False,
    logprobs: Annotated[
        int | None, typer.Option(min=0, max=20, help="With --json: so many likeliest tokens each.")
    ] = None,
    address: Annotated[
        str, typer.Option(envvar="FLYSERVE_ADDRESS", help="host:port of the deployment.")
    ] = DEFAULT_ADDRESS,
) -> None:
    """Generate a response and show how each token came to be.

    What is not given is the deployment's default.
    """
    if logprobs is not None and not as_json:
        raise typer.BadParameter("is told with --json only", param_hint="--logprobs")
    text = sys.stdin.read() if prompt == "-" else prompt
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, coupling=coupling)
    speculation = Speculation(
        mode=mode,
        preset=preset,
        draft_length=draft_length,
        draft_length_policy=draft_length_policy,
        window=window,
        threshold=threshold,
        tail=tail,
    )
    with reported_errors("start a deployment with: flyserve up"), Client(address) as client:
        if as_json or n > 1:
            response = client.generate(
                text, max_new_tokens, sampling, speculation, stop=stop or (), n=n, logprobs=logprobs
            )
            (print_json if as_json else show_choices)(response)
        else:
            show(client.stream(text, max_new_tokens, sampling, speculation, stop=stop or ()))
