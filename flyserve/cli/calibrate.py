"""`flyserve calibrate`: record your own prompts once, replay every rule, choose one, write it as a preset."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flyserve.cli.groups import grouped
from flyserve.cli.options import ConnectionOptions, time_option
from flyserve.cli.terminal import messages, output, reported_errors
from flyserve.core.errors import ConfigError
from flyserve.whole_file import check_distinct_files, check_writable, write_whole

if TYPE_CHECKING:
    from flyserve.calibration.frontier import Row
    from flyserve.calibration.judge import Judge

_Writer = Callable[[Sequence["Row"]], str]
"""Writes the chosen rule, and returns a line about it."""
EXAMPLES = """Examples:

flyserve calibrate prompts.jsonl --recording pair.rec --chart frontier.svg

flyserve calibrate prompts.jsonl --recording pair.rec --verifier "python check.py"

flyserve calibrate prompts.jsonl --recording pair.rec --offline --write careful --deployment fly.yaml"""


@dataclass(frozen=True, slots=True)
class JudgeOptions:
    """Judge of responses: a command, or the answer of a prompt."""

    verifier: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Command that gets a JSON object (prompt, answer, family, response) on its standard input."
            " Status 0: right, 1: wrong. A Python program that crashes has status 1, too."
            " Without it, one that has the answer is right.",
        ),
    ] = None
    verifier_timeout_s: Annotated[float, time_option(min=0.1, help="Time limit of one call.")] = 60.0


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The chosen rule, and the file that it is written into."""

    write: Annotated[
        str | None, typer.Option(metavar="NAME", help="Write the chosen rule as a preset of this name.")
    ] = None
    deployment: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Deployment file to write it into.")
    ] = None
    rule: Annotated[
        str | None, typer.Option(help="Rule to choose, by its name; default: the fastest that --keep allows.")
    ] = None
    keep: Annotated[
        float, typer.Option(min=0, max=1, help="Least part of exact's accuracy to keep in every family.")
    ] = 0.98


@grouped
def calibrate(
    prompts: Annotated[
        Path,
        typer.Argument(
            dir_okay=False,
            help='File of your own prompts, a JSON object a line: {"prompt": "...", "answer": "...",'
            ' "family": "..."}; all but the prompt may be left out.',
        ),
    ],
    judging: JudgeOptions,
    writing: WriteOptions,
    connection: ConnectionOptions,
    recording: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="File that keeps what was recorded; a later call goes on with it."),
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Ask no deployment: replay what --recording has.")
    ] = False,
    problems: Annotated[int | None, typer.Option(min=1, help="Use the first prompts only.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest response in tokens.")] = 512,
    draft_length: Annotated[
        int | None,
        typer.Option(min=1, help="Draft tokens per round; default: the deployment's, --offline: recorded."),
    ] = None,
    finalists: Annotated[
        int, typer.Option(min=1, help="Rules to replay whole, beside exact, the presets and --rule.")
    ] = 8,
    chart: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write the frontier as an SVG file.")
    ] = None,
) -> None:
    """Find the rule of mode fly that fits your prompts and your pair of models.

    Records what target and drafter say about your prompts, replays every rule on it, and prints tokens per
    round against what is lost. Every figure is that of the whole response under the rule.
    """
    with reported_errors():
        from flyserve.calibration.candidate import candidates
        from flyserve.calibration.collect import Collector
        from flyserve.calibration.judge import Judge
        from flyserve.calibration.prompts import check_distinct, load_prompts
        from flyserve.calibration.recording import Pair, load_recording
        from flyserve.calibration.run import Calibration, saved
        from flyserve.core.presets import PRESETS

        loaded = load_prompts(prompts, problems)
        check_distinct(loaded)
        inputs = {"PROMPTS": prompts, "--recording": recording, "--deployment": writing.deployment}
        check_distinct_files(inputs | {"--chart": chart})
        kept = None if offline else recording
        for path in filter(None, (kept, chart)):
            check_writable(path)
        judge = Judge(judging.verifier, judging.verifier_timeout_s)
        write = _writer(writing, can_choose=any(map(judge.can_judge, loaded)))
        with connection.client() as client:
            pair = None if offline else Pair.of(client.info(connection.timeout_s), draft_length)
            found = load_recording(recording, pair, draft_length)
            asked = None if offline else client
            collector = Collector(asked, found.pair, max_new_tokens, connection.timeout_s)
            with saved(found, kept, messages(), collector.check_pair) as save, closing(judge):
                calibration = Calibration(collector, found, loaded, judge, messages(), save)
                always = (*PRESETS, *filter(None, [writing.rule]))
                rows = calibration.run(candidates(), always, finalists)
        _report(rows, len(loaded), judge, chart, write)


def _report(
    rows: Sequence["Row"], num_prompts: int, judge: "Judge", chart: Path | None, write: _Writer | None
) -> None:
    """Write the files that were asked for, and print tables and notes, also if a file cannot be written."""
    from flyserve.calibration.shown import frontier_chart, notes, tables

    written = ""
    try:
        if chart is not None:
            write_whole(chart, frontier_chart(rows))
        if write is not None:
            written = write(rows)
    finally:  # NOTE: last, since a closed pipe ends the process.
        for table in tables(rows, num_prompts):
            output().print(table)
        for note in filter(None, (*notes(rows), *judge.doubts(), written)):
            output().print(note, markup=False)


def _writer(options: WriteOptions, *, can_choose: bool) -> _Writer | None:
    """Check name and file, and return the function that writes the chosen rule; None if none is wanted.

    Without `can_choose` no response can be judged, so only a named rule can be written.
    """
    if options.write is None:
        if options.deployment or options.rule:
            raise ConfigError("--deployment and --rule: need --write NAME")
        return None
    if options.deployment is None:
        raise ConfigError("--write: needs --deployment FILE")
    if options.rule is None and not can_choose:
        raise ConfigError("--write: no prompt has an answer, and there is no --verifier: name a --rule")
    from flyserve.calibration.frontier import choose
    from orchestration.deployment.presets import preset_writer

    write_preset = preset_writer(options.deployment, options.write)

    def write(rows: Sequence["Row"]) -> str:
        chosen = choose(rows, options.keep, options.rule)
        write_preset(chosen.candidate.preset())
        shown = f"preset {options.write} in {options.deployment}: {chosen.candidate.name}"
        return f"{shown}, {chosen.tokens_per_round:.2f} tokens per round"

    return write
