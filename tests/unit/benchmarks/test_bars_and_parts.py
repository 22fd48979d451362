from pathlib import Path

import pytest

from benchmarks.bars import Bar, bars_table
from benchmarks.parts import Parts
from benchmarks.summary import Interval
from benchmarks.svg import line_chart


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        (Interval(1.2, 1.16, 1.3), "met"),
        (Interval(1.2, 1.1, 1.3), "met, within the noise"),
        (Interval(1.1, 1.0, 1.2), "missed, within the noise"),
        (Interval(1.1, 1.0, 1.14), "missed"),
    ],
)
def test_a_bar_says_whether_it_was_reached_and_whether_that_is_certain(
    measured: Interval, verdict: str
) -> None:
    bar = Bar("speed", 1.15, measured)
    assert bar.verdict == verdict and bar.is_met == verdict.startswith("met")


def test_a_bar_may_be_an_upper_one() -> None:
    half = Bar("forwards", 0.5, Interval(0.4, 0.3, 0.49), is_least=False)
    assert half.verdict == "met"
    assert Bar("forwards", 0.5, Interval(0.6, 0.4, 0.7), is_least=False).verdict == "missed, within the noise"
    (row,) = bars_table([half]).rows
    assert row == ("forwards", "<= 0.50x", "0.40x", "0.30 to 0.49", "met")


def test_a_resumed_run_measures_only_what_is_missing(tmp_path: Path) -> None:
    asked: list[str] = []

    def measure(name: str) -> dict[str, str]:
        asked.append(name)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return {"found": name}

    def run(resumes: bool, plan: str = "plan") -> list[dict[str, str]]:
        parts = Parts(tmp_path, plan, resumes)
        return [parts.measure(name, lambda name=name: measure(name)) for name in ("a", "b")]

    with pytest.raises(KeyboardInterrupt):
        run(resumes=False)
    assert run(resumes=True) == [{"found": "a"}, {"found": "b"}] and asked == ["a", "b", "b"]
    assert run(resumes=True, plan="another") and asked[3:] == ["a", "b"]
    assert run(resumes=False) and asked[5:] == ["a", "b"]


def test_a_finished_run_keeps_nothing(tmp_path: Path) -> None:
    parts = Parts(tmp_path, "plan", resumes=True)
    parts.measure("a", lambda: 1)
    parts.clear()
    assert parts.measure("a", lambda: 2) == 2


def test_on_a_logarithmic_axis_doublings_are_as_far_apart() -> None:
    chart = line_chart("t", "x", "y", {"a": [(1, 1.0), (8, 2.0), (64, 3.0)]}, is_logarithmic=True)
    (path,) = [line for line in chart.splitlines() if line.startswith("<polyline")]
    xs = [float(point.split(",")[0]) for point in path.split('"')[1].split()]
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1])
