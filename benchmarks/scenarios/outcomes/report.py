"""The report of the study. Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from operator import methodcaller

from benchmarks.harness.machine import Machine
from benchmarks.harness.plot import line_chart
from benchmarks.harness.report import AROUND, TIMES, Figure, Report, Row, Table, make_rows
from benchmarks.harness.statistics import Goal
from benchmarks.scenarios.outcomes.ceiling import AHEAD, NOTHING, Costs, Totals, Way, speed, totals
from benchmarks.scenarios.outcomes.plan import MODES, TEMPERATURES, TITLES, Plan, Setting
from benchmarks.scenarios.outcomes.ranking import Answer, Start
from fly.types import Mode
from flyserve.bench.statistics import Interval, bootstrap, share

Found = dict[Setting, list[Answer]]
_GOAL = 1.1


@dataclass(frozen=True, slots=True)
class Counted:
    """A setting with the starts of its rounds, and those of each response."""

    setting: Setting
    answers: Sequence[Answer]

    @property
    def starts(self) -> list[Start]:
        """All starts but those of responses."""
        return list(chain.from_iterable(answer.starts for answer in self.answers))

    @property
    def corrections(self) -> list[Start]:
        """Starts after a draft that was not kept as a whole."""
        return [start for start in self.starts if not start.is_full]

    def prepared(self, branches: int) -> float:
        """Return the share of starts among the `branches` most likely outcomes."""
        places = [start.place for start in self.starts]
        return share(sum(place is not None and place < branches for place in places), len(places))


def _shares(starts: Sequence[Start], ranks: Collection[int]) -> float:
    return share(sum(start.rank in ranks for start in starts), len(starts))


def count_figures(plan: Plan) -> tuple[Figure[Counted], ...]:
    """Return the figures of a setting's starts."""
    percent = "{:.0%}"
    return (
        Figure("name", lambda c: c.setting.mode.value, {"mode": "{}"}),
        Figure("temperature", lambda c: c.setting.temperature, {"temperature": "{:g}"}),
        Figure("draft_length", lambda c: c.setting.draft_length, {"drafts of": "{}"}),
        Figure("starts", lambda c: len(c.starts), {"starts": "{}"}),
        Figure(
            "tau",
            lambda c: share(sum(a.tokens for a in c.answers), sum(a.rounds for a in c.answers)),
            {"tau": "{:.2f}"},
        ),
        Figure(
            "whole", lambda c: share(len(c.starts) - len(c.corrections), len(c.starts)), {"whole": percent}
        ),
        Figure(
            "ahead", lambda c: share(sum(s.is_ahead for s in c.starts), len(c.starts)), {"ahead": percent}
        ),
        *(
            Figure(f"prepared_{count}", methodcaller("prepared", count), {f"F = {count}": percent})
            for count in plan.branches
        ),
        Figure("second", lambda c: _shares(c.corrections, (1,)), {"2nd choice": percent}),
        Figure("next", lambda c: _shares(c.corrections, (2, 3)), {"3rd or 4th": percent}),
    )


@dataclass(frozen=True, slots=True)
class Best:
    """The best draft length, and number of outcomes, of one use of the time.

    Attributes:
        parts: Totals of each response.
    """

    way: Way
    draft_length: int
    speed: float
    parts: Sequence[Totals]

    def describe(self) -> str:
        """Return the speed with the draft length, and the number of outcomes if any are prepared."""
        branches = f", F = {self.way.branches}" if self.way.branches else ""
        return f"{self.speed:.0f} (K = {self.draft_length}{branches})"


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The uses of the time compared, each at its best draft length."""

    pair: str
    mode: Mode
    temperature: float
    costs: Costs
    between_s: float
    nothing: Best
    ahead: Best
    prepared: Best

    @property
    def ratio(self) -> Interval:
        """Prepared outcomes by drafting ahead, with the interval over resamples of the prompts."""

        def ratio(pairs: Sequence[tuple[Totals, Totals]]) -> float:
            own, other = (list(each) for each in zip(*pairs, strict=True))
            return share(self._speed(self.prepared, own), self._speed(self.ahead, other))

        return bootstrap(list(zip(self.prepared.parts, self.ahead.parts, strict=True)), ratio)

    def _speed(self, best: Best, parts: Sequence[Totals]) -> float:
        return speed(self.costs, best.draft_length, best.way, parts, self.between_s)


CEILINGS: tuple[Figure[Ceiling], ...] = (
    Figure("name", lambda c: c.mode.value, {"mode": "{}"}),
    Figure("temperature", lambda c: c.temperature, {"temperature": "{:g}"}),
    Figure("costs", lambda c: c.costs.name),
    Figure("between_ms", lambda c: 1e3 * c.between_s, {"between, ms": "{:g}"}),
    Figure("nothing", lambda c: c.nothing.describe(), {"nothing": "{}"}),
    Figure("ahead", lambda c: c.ahead.describe(), {"ahead": "{}"}),
    Figure("prepared", lambda c: c.prepared.describe(), {"prepared": "{}"}),
    Figure("speed_up", lambda c: c.ratio, {"by ahead": TIMES, "95% interval": AROUND}),
)


def ceilings(plan: Plan, pair: str, found: Found, costs: Costs) -> Iterator[Ceiling]:
    """Yield the ceilings of a pair at these costs."""
    for between_ms, mode, temperature in product(plan.between_ms, MODES, TEMPERATURES):
        between_s = 1e-3 * between_ms
        answers = {k: found[Setting(pair, mode, temperature, k)] for k in plan.draft_lengths}
        nothing, ahead, prepared = (
            max(_measured(costs, answers, ways, between_s), key=lambda best: best.speed)
            for ways in ((NOTHING,), (AHEAD,), tuple(map(Way, plan.branches)))
        )
        yield Ceiling(pair, mode, temperature, costs, between_s, nothing, ahead, prepared)


def _measured(
    costs: Costs, answers: Mapping[int, Sequence[Answer]], ways: Sequence[Way], between_s: float
) -> Iterator[Best]:
    for (length, each), way in product(answers.items(), ways):
        parts = [totals(answer, way) for answer in each]
        yield Best(way, length, speed(costs, length, way, parts, between_s), parts)


def make_report(plan: Plan, machine: Machine, found: Found, costs: Mapping[str, Sequence[Costs]]) -> Report:
    """Return the report of the pairs that were recorded."""
    figures = count_figures(plan)
    counts = {
        pair: make_rows(figures, [Counted(s, answers) for s, answers in found.items() if s.pair == pair])
        for pair in costs
    }
    compared = {
        (pair, each.name): make_rows(CEILINGS, ceilings(plan, pair, found, each))
        for pair, all_costs in costs.items()
        for each in all_costs
    }
    all_costs = list(chain.from_iterable(costs.values()))
    ratios = sorted(row.speed_up.value for rows in compared.values() for row in rows)
    return Report(
        "outcomes",
        machine,
        plan,
        counts=counts,
        costs=all_costs,
        ceilings=[row for rows in compared.values() for row in rows],
    ).fill(
        titles=TITLES,
        count_tables={pair: Table.of(TITLES[pair], figures, rows) for pair, rows in counts.items()},
        charts={pair: _chart(plan, TITLES[pair], rows) for pair, rows in counts.items()},
        forwards=_forwards(plan, all_costs),
        ceiling_tables=[Table.of(name, CEILINGS, rows) for (_, name), rows in compared.items()],
        targets=list(_goals(compared)),
        limit=_GOAL,
        ratios=ratios,
        num_reached=sum(ratio >= _GOAL for ratio in ratios),
    )


def _goals(compared: Mapping[tuple[str, str], Sequence[Row]]) -> Iterator[Goal]:
    """Yield the goals of the default way of decoding: mode fly, greedy."""
    for (_, name), rows in compared.items():
        for row in rows:
            if (row.name, row.temperature) == (Mode.FLY.value, 0.0):
                point = f"{row.name}, temperature 0, {row.between_ms:g} ms between"
                yield Goal(f"{name}: prepared by ahead ({point})", _GOAL, row.speed_up)


def _forwards(plan: Plan, costs: Sequence[Costs]) -> Table:
    drafter = sorted({1, *plan.branches})
    heads = (
        *(f"drafter, {number}" for number in drafter),
        *(f"target, {length} + 1" for length in plan.draft_lengths),
    )
    return Table(
        "Milliseconds of a forward",
        ("rows", *heads),
        tuple(
            (
                each.name,
                *(f"{1e3 * each.drafter_s[number]:.2f}" for number in drafter),
                *(f"{1e3 * each.verify_s[length]:.2f}" for length in plan.draft_lengths),
            )
            for each in costs
        ),
    )


def _chart(plan: Plan, title: str, rows: Sequence[Row]) -> str:
    longest = max(plan.draft_lengths)
    lines = {
        f"{row.name}, temperature {row.temperature:g}": [
            (count, 100 * getattr(row, f"prepared_{count}")) for count in plan.branches
        ]
        for row in rows
        if row.draft_length == longest
    }
    label = "starts, %"
    return line_chart(f"{title}, drafts of {longest}", "outcomes", label, lines, is_logarithmic=True)
