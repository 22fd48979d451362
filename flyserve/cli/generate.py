"""`flyserve generate`: one prompt, its response streamed with coloured verdicts."""

import json
from pathlib import Path
from typing import Annotated

import typer

from flyserve.cli.groups import grouped
from flyserve.cli.options import ConnectionOptions, SamplingOptions, SpeculationOptions
from flyserve.cli.reading import read_stdin, read_text
from flyserve.cli.show import print_json, print_json_lines, show, show_choices
from flyserve.cli.terminal import reported_errors
from flyserve.core.grammar import Grammar, GrammarKind
from flyserve.requests import RequestOptions

EXAMPLES = """Examples:

flyserve generate "Once upon a time" --max-new-tokens 50

cat question.txt | flyserve generate - --mode exact --temperature 0.7 --seed 1

flyserve generate "Hello" --json | jq .choices[0].statistics.tau

flyserve generate "$(cat task.txt)" --prediction old_version.py

flyserve generate "Is 7 prime?" --choice yes --choice no"""


@grouped
def generate(
    prompt: Annotated[str, typer.Argument(help="What to continue; - reads it from standard input.")],
    sampling: SamplingOptions,
    speculation: SpeculationOptions,
    connection: ConnectionOptions,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Longest response in tokens.")] = None,
    n: Annotated[int, typer.Option("--n", min=1, help="Choices, decoded in parallel.")] = 1,
    stop: Annotated[
        list[str] | None, typer.Option(help="The response ends before this text; may repeat.")
    ] = None,
    logprobs: Annotated[
        int | None, typer.Option(min=0, max=20, help="With JSON: number of likeliest tokens per position.")
    ] = None,
    prediction: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="File that the response will resemble.")
    ] = None,
    json_schema: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="File with a JSON Schema; the response keeps to it."),
    ] = None,
    regex: Annotated[
        str | None, typer.Option(help="Regular expression that the whole response matches.")
    ] = None,
    choice: Annotated[
        list[str] | None, typer.Option(help="The response is this text; may repeat: one of them.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, at the end.")] = False,
    as_lines: Annotated[
        bool, typer.Option("--json-lines", help="Print one JSON object per chunk, as it arrives.")
    ] = False,
) -> None:
    """Generate a response and show the verdict of each token.

    On a terminal each token is coloured by its verdict; in a pipe, or with NO_COLOR set, only the text goes
    to standard output. Warnings and a line of statistics go to standard error.
    """
    if as_json and as_lines:
        raise typer.BadParameter("excludes --json", param_hint="--json-lines")
    if logprobs is not None and not (as_json or as_lines):
        raise typer.BadParameter("needs --json or --json-lines", param_hint="--logprobs")
    if sum(bool(given) for given in (json_schema, regex, choice)) > 1:
        raise typer.BadParameter(
            "give one of --json-schema, --regex and --choice", param_hint="--json-schema"
        )
    with reported_errors(), connection.client() as client:
        text = read_stdin() if prompt == "-" else prompt
        request = (text, max_new_tokens, sampling, speculation)
        grammar = _grammar(json_schema, regex, choice)
        predicted = "" if prediction is None else read_text(prediction, "--prediction")
        options = RequestOptions(
            stop=stop or (), n=n, logprobs=logprobs, prediction=predicted, grammar=grammar
        )
        if as_json or (n > 1 and not as_lines):
            response = client.generate(*request, timeout_s=connection.timeout_s, **options)
            (print_json if as_json else show_choices)(response)
            return
        with client.stream(*request, timeout_s=connection.timeout_s, **options) as stream:
            (print_json_lines if as_lines else show)(stream)


def _grammar(json_schema: Path | None, regex: str | None, choices: list[str] | None) -> Grammar | None:
    if json_schema is not None:
        return Grammar(GrammarKind.JSON_SCHEMA, read_text(json_schema, "--json-schema"))
    if regex is not None:
        return Grammar(GrammarKind.REGEX, regex)
    return Grammar(GrammarKind.CHOICE, json.dumps(choices, ensure_ascii=False)) if choices else None
