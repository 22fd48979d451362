"""`flyserve generate`: one prompt, its response streamed with coloured verdicts."""

import sys
from enum import Enum
from typing import Annotated

import typer

from flyserve.cli.groups import grouped
from flyserve.cli.options import ConnectionOptions, SamplingOptions, SpeculationOptions
from flyserve.cli.show import print_json, print_json_lines, show, show_choices
from flyserve.cli.terminal import START_FIRST, reported_errors

EXAMPLES = """Examples:

flyserve generate "Once upon a time" --max-new-tokens 50

cat question.txt | flyserve generate - --mode exact --temperature 0.7 --seed 1

flyserve generate "Hello" --json | jq .choices[0].statistics.tau"""


class Form(Enum):
    """How a response is printed."""

    TEXT = "text"
    JSON = "json"
    LINES = "lines"


@grouped
def generate(
    prompt: Annotated[str, typer.Argument(help="What to continue; - reads it from standard input.")],
    sampling: SamplingOptions,
    speculation: SpeculationOptions,
    connection: ConnectionOptions,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Longest response in tokens.")] = None,
    n: Annotated[int, typer.Option("--n", min=1, help="Choices, made side by side.")] = 1,
    stop: Annotated[
        list[str] | None, typer.Option(help="The response ends before this text; may repeat.")
    ] = None,
    logprobs: Annotated[
        int | None, typer.Option(min=0, max=20, help="As JSON: so many likeliest tokens each.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, at the end.")] = False,
    as_lines: Annotated[
        bool, typer.Option("--json-lines", help="Print one JSON object per chunk, as it comes.")
    ] = False,
) -> None:
    """Generate a response and show how each token came to be.

    On a terminal each token is coloured by its verdict; in a pipe, or with NO_COLOR set, only the text goes
    to standard output. Warnings and a line of statistics go to standard error.
    """
    form = _form(as_json, as_lines, logprobs)
    text = sys.stdin.read() if prompt == "-" else prompt
    with reported_errors(START_FIRST), connection.client() as client:
        request = (text, max_new_tokens, sampling.sampling(), speculation.speculation())
        if form is Form.JSON or (form is Form.TEXT and n > 1):
            response = client.generate(
                *request, stop=stop or (), n=n, logprobs=logprobs, timeout_s=connection.timeout_s
            )
            (print_json if form is Form.JSON else show_choices)(response)
            return
        with client.stream(
            *request, stop=stop or (), n=n, logprobs=logprobs, timeout_s=connection.timeout_s
        ) as stream:
            (print_json_lines if form is Form.LINES else show)(stream)


def _form(as_json: bool, as_lines: bool, logprobs: int | None) -> Form:
    if as_json and as_lines:
        raise typer.BadParameter("excludes --json", param_hint="--json-lines")
    form = Form.JSON if as_json else Form.LINES if as_lines else Form.TEXT
    if logprobs is not None and form is Form.TEXT:
        raise typer.BadParameter("is told with --json or --json-lines only", param_hint="--logprobs")
    return form
