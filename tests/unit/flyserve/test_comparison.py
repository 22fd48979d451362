import io
from collections import Counter

from rich.console import Console

from demo.tasks import load_tasks
from flyserve.bench.comparison import (
    BASELINE,
    SETTINGS,
    Limits,
    Measurement,
    Report,
    Summary,
    compare,
    comparison_table,
    notes,
    num_requests,
    rotated,
    summarize,
)
from flyserve.core.response import Statistics

LIMITS = Limits(64, 7.0)


def measurement(problem: int, seconds: float, is_solved: bool | None = True, **figures: float) -> Measurement:
    statistics = Statistics(**{"emitted": 100, "rounds": 10, "draft_rounds": 10, **figures})  # type: ignore[arg-type]
    return Measurement(str(problem), seconds, is_solved, statistics)


def test_the_interval_holds_the_value() -> None:
    baseline = [measurement(n, 1.0) for n in range(40)]
    fast = [measurement(n, 0.2 + 0.01 * n) for n in range(40)]
    up = summarize("fast", fast, baseline).speed_up
    assert up.low < up.value < up.high
    assert summarize("fast", fast, baseline).speed_up == up


def test_shares_are_of_totals() -> None:
    runs = [
        measurement(0, 1.0, tau=4.0, drafted=150, rescued=5, sub_drafter_tokens=30, drafter_forwards=40),
        measurement(
            1, 1.0, tau=10.0, draft_rounds=20, emitted=300, drafted=250, rescued=15, sub_drafter_tokens=50
        ),
    ]
    summary = summarize("FLy", runs, runs)
    assert summary.tau == 8.0
    assert summary.rescued_share == 0.05
    assert summary.supplied_share == 0.2
    assert summary.forwards_per_token == 0.1
    assert summary.median_tokens_per_s == 200.0


def test_problems_lost_and_gained_are_against_the_baseline() -> None:
    baseline = [measurement(n, 1.0, is_solved) for n, is_solved in enumerate([True, True, False, False])]
    runs = [measurement(n, 1.0, is_solved) for n, is_solved in enumerate([False, True, True, False])]
    summary = summarize("FLy", runs, baseline)
    assert (summary.accuracy, summary.lost, summary.gained) == (0.5, 1, 1)


def test_only_problems_with_an_answer_count_for_the_accuracy() -> None:
    baseline = [measurement(n, 1.0, judged) for n, judged in enumerate([True, None, None])]
    found = summarize("FLy", baseline, baseline)
    assert (found.accuracy, found.lost, found.gained) == (1.0, 0, 0)
    none = summarize(BASELINE, baseline[1:], baseline[1:])
    assert none.accuracy is None
    table = comparison_table([none])
    cells = dict(zip(*(column.cells for column in table.columns), strict=True))
    assert (cells["accuracy"], cells["problems lost / gained"]) == ("-", "-")


def test_each_setting_comes_first_equally_often() -> None:
    orders = [rotated(tuple(SETTINGS), problem) for problem in range(8)]
    assert all(set(order) == set(SETTINGS) for order in orders)
    assert set(Counter(order[0] for order in orders).values()) == {2}


def test_the_table_has_one_column_per_setting_and_fits_80_characters() -> None:
    runs = {setting: [measurement(n, 1.0, tau=3.0) for n in range(3)] for setting in SETTINGS}
    table = comparison_table([summarize(name, measured, runs[BASELINE]) for name, measured in runs.items()])
    stream = io.StringIO()
    Console(file=stream, width=80).print(table)
    assert len(table.columns) == len(SETTINGS) + 1
    assert all(setting in stream.getvalue() for setting in SETTINGS)
    assert "\u2026" not in stream.getvalue()


def test_a_small_comparison_claims_no_interval_and_settings_without_effect_are_named() -> None:
    def summaries(count: int, **figures: float) -> list[Summary]:
        plain = [measurement(n, 1.0) for n in range(count)]
        drafted = [measurement(n, 1.0, drafted=100, tau=3.0, **figures) for n in range(count)]
        return [summarize(name, plain if name == BASELINE else drafted, plain) for name in SETTINGS]

    few, many = summaries(19), summaries(20, rescued=1, sub_drafter_tokens=1)
    assert "95% interval" not in list(comparison_table(few).columns[0].cells)
    assert "95% interval" in list(comparison_table(many).columns[0].cells)
    assert list(notes(many, 20)) == []
    interval, fly, supplied = notes(few, 19)
    assert interval.startswith("no 95% interval: it takes at least 20 problems")
    assert fly.startswith("FLy: no token was rescued")
    assert supplied.startswith("FLy + sub-drafter: the sub-drafter supplied no draft")


class RecordingClient:
    """Return a wrong answer to every request, and record the requests in order."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    def generate(self, prompt: str, max_new_tokens: int, **options: object) -> object:
        assert (max_new_tokens, options["timeout_s"]) == LIMITS
        self.asked.append(options["speculation"])

        class Answer:
            text = "Answer: nothing"
            statistics = Statistics(emitted=3)

        return Answer


def test_every_task_meets_every_setting_after_the_warm_up() -> None:
    tasks = load_tasks(3)
    client, advanced = RecordingClient(), Counter[str]()
    found = list(compare(client, tasks, lambda: advanced.update(["request"]), LIMITS))  # type: ignore[arg-type]
    runs = Report(found).runs()
    assert {setting: [run.problem for run in measured] for setting, measured in runs.items()} == {
        setting: [task.id for task in tasks] for setting in SETTINGS
    }
    assert advanced["request"] == len(client.asked) == num_requests(3)
    assert not any(run.is_solved for measured in runs.values() for run in measured)
