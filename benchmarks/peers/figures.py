"""What the runs say: medians, ratios within the run, their intervals. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.peers.measure import Run, StreamsRun
from benchmarks.peers.settings import BASELINE, SETTINGS, STREAM_METHODS, Setting
from benchmarks.summary import Interval, Spread, bootstrap, spread


@dataclass(frozen=True, slots=True)
class SettingFigures:
    """One setting's line.

    Attributes:
        tokens_per_s: Over all runs.
        ratio: Speed by the baseline's on the same prompt in the same repetition: the median, and its 95%
            interval over resamples of the prompts.
        ratio_spread: The same ratios.
        tau: Tokens per round with a draft, median; None where it is not told.
        limit_share: Weights read per second by the measured limit; None where decoding is not plain.
        same_share: Responses that equal the baseline's, token for token.
    """

    name: str
    place: str
    tokens_per_s: Spread
    ratio: Interval
    ratio_spread: Spread
    tau: float | None
    limit_share: float | None
    same_share: float


@dataclass(frozen=True, slots=True)
class StreamsFigures:
    """Tokens per second of all streams together, and by plain decoding's at as many streams."""

    method: str
    streams: int
    tokens_per_s: Spread
    ratio: float


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """The engine alone: a way of verifying, its time, and how many times faster batching is."""

    dtype: str
    rows: int
    way: str
    seconds: Spread
    batched_gain: float


def summarize_alone(
    runs: Mapping[str, Sequence[Run]], weight_bytes: float, limit_bytes_per_s: float
) -> list[SettingFigures]:
    """A line per setting that was measured.

    Args:
        runs: By the setting's name; the baseline among them, the same prompts and repetitions in each.
        weight_bytes: That the target reads per token of plain decoding.
        limit_bytes_per_s: At which this machine reads weights.
    """
    tokens_per_limit = weight_bytes / limit_bytes_per_s
    return [
        _figures(setting, runs[setting.name], runs[BASELINE], tokens_per_limit)
        for setting in SETTINGS
        if setting.name in runs
    ]


def _figures(
    setting: Setting, runs: Sequence[Run], baseline: Sequence[Run], s_per_token: float
) -> SettingFigures:
    pairs = list(zip(runs, baseline, strict=True))
    by_prompt: dict[int, list[float]] = {}
    for run, base in pairs:
        by_prompt.setdefault(run.prompt, []).append(run.tokens_per_s / base.tokens_per_s)
    speeds = spread([run.tokens_per_s for run in runs])
    taus = [run.answer.tau for run in runs if run.answer.tau is not None]
    same = sum(run.answer.tokens == base.answer.tokens for run, base in pairs)
    return SettingFigures(
        name=setting.name,
        place=setting.place.value,
        tokens_per_s=speeds,
        ratio=bootstrap(list(by_prompt.values()), _median_of_all),
        ratio_spread=spread([ratio for ratios in by_prompt.values() for ratio in ratios]),
        tau=median(taus) if taus else None,
        limit_share=speeds.value * s_per_token if setting.is_plain else None,
        same_share=same / len(pairs),
    )


def _median_of_all(groups: Sequence[Sequence[float]]) -> float:
    return median(ratio for ratios in groups for ratio in ratios)


def summarize_streams(runs: Sequence[StreamsRun]) -> list[StreamsFigures]:
    """A line per count and method; plain decoding is among the methods."""
    rates: dict[tuple[int, str], list[float]] = {}
    for run in runs:
        rates.setdefault((run.streams, run.method), []).append(run.tokens_per_s)
    return [
        StreamsFigures(method, count, spread(found), _median_ratio(found, rates[count, "plain"]))
        for (count, method), found in sorted(rates.items(), key=_by_count_then_method)
    ]


def _by_count_then_method(entry: tuple[tuple[int, str], list[float]]) -> tuple[int, int]:
    (count, method), _ = entry
    return count, STREAM_METHODS.index(method)


def summarize_engine(dtype: str, seconds: Mapping[tuple[str, int], Sequence[float]]) -> list[EngineFigures]:
    """A line per number of rows and way."""
    return [
        EngineFigures(dtype, rows, way, spread(found), _median_ratio(found, seconds["batched", rows]))
        for (way, rows), found in seconds.items()
    ]


def _median_ratio(values: Sequence[float], others: Sequence[float]) -> float:
    """Of values by others of the same repetition."""
    return median(value / other for value, other in zip(values, others, strict=True))
