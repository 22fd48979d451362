"""Timed responses by setting, and their figures beside those of a baseline on the same prompts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4
from zlib import crc32

from pydantic import TypeAdapter

from benchmarks.harness.client import Prompts, generate
from benchmarks.harness.command import Context
from benchmarks.harness.load import Interleave
from benchmarks.harness.report import AROUND, TIMES, Figure
from benchmarks.harness.statistics import Spread
from flyserve.bench.statistics import Interval, bootstrap, share, speed, tau, total
from flyserve.client import Client
from flyserve.core.request import SpeculationParams
from flyserve.core.response import Response, Statistics

_WARM_UPS = 2


@dataclass(frozen=True, slots=True)
class Run:
    """One response.

    Attributes:
        prompt: Number of the prompt.
        repetition: Number of earlier responses to the prompt.
        seconds: Time from the call to the whole response, as the client sees it.
        statistics: Statistics as the server reports them.
        checksum: Checksum of the tokens.
        prompt_tokens: Tokens of the prompt.
        is_solved: Verdict of the prompt's verifier; None without one.
    """

    prompt: int
    repetition: int
    seconds: float
    statistics: Statistics
    checksum: int = 0
    prompt_tokens: int = 0
    is_solved: bool | None = None


Runs = dict[str, list[Run]]
"""Runs by setting; all settings have the same prompts and repetitions, in one order."""
Parts = dict[str, dict[str, Runs]]
"""Runs of each part of a scenario, by the name of a table."""
_PARTS = TypeAdapter(Parts)
Send = Callable[[Sequence[int], int, int, str], Run]
"""Sends a prompt, with its number, the repetition and a cache salt."""


def measure_parts(context: Context, names: Sequence[str], measure: Callable[[str], dict[str, Runs]]) -> Parts:
    """Measure the chosen parts that can be measured here; the others may come from an earlier run."""
    earlier = _PARTS.validate_python(context.earlier)
    found = {name: measure(name) if name in context.chosen(names) else earlier.get(name) for name in names}
    return {name: tables for name, tables in found.items() if tables}


def sender(
    client: Client,
    way: SpeculationParams,
    max_new_tokens: int,
    judge: Callable[[int, str], bool | None] = lambda number, text: None,
    **options: Any,
) -> Send:
    """Return a function that sends a prompt; a list among the options has a value for each prompt.

    `judge` gives the verdict on a response, from the number of its prompt and its text.
    """

    def send(prompt: Sequence[int], number: int, repetition: int, cache_salt: str) -> Run:
        own = {key: each[number] if isinstance(each, list) else each for key, each in options.items()}
        response, seconds = generate(client, prompt, max_new_tokens, way, cache_salt, **own)
        verdict, found = judge(number, response.text), checksum_of(response)
        return Run(number, repetition, seconds, response.statistics, found, len(prompt), verdict)

    return send


def checksum(tokens: Sequence[int]) -> int:
    """Return a number that equal responses have in common."""
    return crc32(",".join(map(str, tokens)).encode())


def checksum_of(response: Response) -> int:
    """Return the checksum of a response's tokens."""
    return checksum([token.id for token in response.tokens])


def measure_settings(
    sends: Mapping[str, Send],
    prompts: Prompts,
    repeat: int,
    is_remembered: bool,
    interleave: Interleave[str, Run],
) -> Runs:
    """Send every prompt under every setting, by turns.

    The prompts of the warm-up are those of the first turns in reverse: no program learns a measured prompt.

    Args:
        sends: By the setting's name.
        prompts: At least one.
        repeat: Repetitions of every prompt under every setting.
        is_remembered: All prompts of a setting share one cache salt; otherwise each has its own.
        interleave: Order of measuring.
    """
    salt = uuid4().hex

    def measure(name: str, turn: int) -> Run:
        repetition, number = divmod(turn if turn >= 0 else -1 - turn, len(prompts))
        if turn < 0:
            return sends[name](prompts[number][::-1], number, repetition, f"{salt}/warm-up/{name}")
        own = f"{salt}/{name}" if is_remembered else f"{salt}/{name}/{turn}"
        return sends[name](prompts[number], number, repetition, own)

    return interleave(tuple(sends), repeat * len(prompts), measure, min(_WARM_UPS, len(prompts)))


Compared = tuple[str, Sequence[Run], Sequence[Run]]
"""The name of a setting, its runs, and those of its baseline on the same prompts."""
Pairs = Sequence[tuple[Run, Run]]
"""The runs of one prompt, each with that of the baseline."""


def compare(
    runs: Sequence[Run], baseline: Sequence[Run], figure: Callable[[Sequence[Run]], float] = speed
) -> Interval:
    """Return a figure divided by the baseline's, and its interval over resamples of the prompts."""
    return bootstrap(_by_prompt(runs, baseline), lambda prompts: _ratio(figure, prompts))


def compare_prompts(runs: Sequence[Run], baseline: Sequence[Run]) -> Spread:
    """Return the speed of all prompts divided by the baseline's, and that of the prompts at both ends.

    For few prompts, which are all alike in resamples.
    """
    prompts = _by_prompt(runs, baseline)
    each = [_ratio(speed, [prompt]) for prompt in prompts]
    return Spread(_ratio(speed, prompts), min(each), max(each))


def _by_prompt(runs: Sequence[Run], baseline: Sequence[Run]) -> list[Pairs]:
    found: dict[int, list[tuple[Run, Run]]] = {}
    for pair in zip(runs, baseline, strict=True):
        found.setdefault(pair[0].prompt, []).append(pair)
    return list(found.values())


def _ratio(figure: Callable[[Sequence[Run]], float], prompts: Sequence[Pairs]) -> float:
    own = [run for pairs in prompts for run, _ in pairs]
    others = [run for pairs in prompts for _, run in pairs]
    return share(figure(own), figure(others))


def forwards_per_token(runs: Sequence[Run]) -> float:
    """Return drafter forwards divided by emitted tokens."""
    return share(_sum(runs, "drafter_forwards"), _sum(runs, "emitted"))


def cached_share(runs: Sequence[Run]) -> float:
    """Return the prompt tokens whose KV was reused, divided by all prompt tokens."""
    return share(_sum(runs, "cached_tokens"), sum(run.prompt_tokens for run in runs))


def accuracy(runs: Sequence[Run]) -> float | None:
    """Return the share of right responses; None if nothing verifies them."""
    verdicts = [run.is_solved for run in runs if run.is_solved is not None]
    return share(sum(verdicts), len(verdicts)) if verdicts else None


def _sum(runs: Sequence[Run], *names: str) -> float:
    return total(runs, lambda statistics: float(sum(getattr(statistics, name) for name in names)))


def _share(name: str, head: str, form: str, part: str, *whole: str, scale: float = 1.0) -> Figure[Compared]:
    """Return the figure of a statistic's total by the total of others; "-" where it is 0."""
    return Figure(name, lambda c: scale * share(_sum(c[1], part), _sum(c[1], *whole)) or None, {head: form})


def _same(compared: Compared) -> float:
    """Return the share of responses that equal the baseline's, token for token."""
    _, runs, baseline = compared
    pairs = zip(runs, baseline, strict=True)
    return share(sum(run.checksum == other.checksum for run, other in pairs), len(runs))


def _predicted(compared: Compared) -> str | None:
    runs = compared[1]
    accepted, all_ = (_sum(runs, name) / len(runs) for name in ("predicted_accepted", "predicted"))
    return f"{accepted:.0f} of {all_:.0f}" if all_ else None


FIGURES: tuple[Figure[Compared], ...] = (
    Figure("name", lambda c: c[0], {"": "{}"}),
    Figure("tokens_per_s", lambda c: speed(c[1]), {"tokens/s": "{:.0f}"}),
    Figure("ratio", lambda c: compare(c[1], c[2]), {"relative to the first": TIMES, "95% interval": AROUND}),
    Figure("tau", lambda c: tau(c[1]) or None, {"tau": "{:.2f}"}),
    Figure("same", _same, {"same": "{:.0%}"}),
    Figure("accuracy", lambda c: accuracy(c[1]), {"accuracy": "{:.1%}"}),
    Figure("cached_share", lambda c: cached_share(c[1]) or None, {"cached": "{:.1%}"}),
    _share("drafted_share", "with a draft", "{:.0%}", "draft_rounds", "rounds"),
    _share("draft_length", "drafts of", "{:.1f}", "drafted", "draft_rounds"),
    _share("accepted_share", "accepted", "{:.0%}", "accepted", "drafted"),
    _share("forwards_per_token", "forwards", "{:.2f}", "drafter_forwards", "emitted"),
    _share("supplied_share", "supplied", "{:.0%}", "sub_drafter_tokens", "drafted"),
    _share("ahead_share", "ahead", "{:.0%}", "drafted_ahead", "drafted_ahead", "dropped_ahead"),
    Figure("predicted", _predicted, {"predicted": "{}"}),
    _share("forced_share", "free", "{:.0%}", "forced", "emitted"),
    _share("draft_ms", "draft, ms", "{:.2f}", "draft_s", "emitted", scale=1e3),
    _share("verify_ms", "verify, ms", "{:.2f}", "verify_s", "emitted", scale=1e3),
)
"""Figures of a setting; a column that is empty for all settings of a table is left out."""
