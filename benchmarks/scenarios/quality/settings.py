"""The settings: the rules side by side, then one factor at a time around the default."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated

from pydantic import Field

from benchmarks.harness.client import PLAIN, speculation
from benchmarks.harness.command import BasePlan, Quick
from demo.corpus import Split
from fly.request import SamplingParams, SpeculationParams
from fly.types import Coupling, Mode, TailPolicy

DRAFT_LENGTH = 15
EXACT = speculation(Mode.EXACT, DRAFT_LENGTH)
CARRY = speculation(Mode.FLY, DRAFT_LENGTH, preset="flyserve")
REJECT = replace(CARRY, tail=TailPolicy.REJECT)
SHRINK = replace(CARRY, preset="vllm", guard_stops=True, strict_prefix_tokens=2)
"""vLLM's shrinking window, in all else the same as `REJECT`."""
RULES = {
    "plain": PLAIN,
    "exact": EXACT,
    "official": replace(CARRY, preset="official"),
    "vllm": replace(CARRY, preset="vllm"),
    "paper": replace(CARRY, preset="paper"),
    "flyserve, carry": CARRY,
    "flyserve, reject": REJECT,
}
MAIN, HARD, HARD_GAP = "main", "hard", "hard_gap"
_HARD_RULES = ("plain", "exact", "vllm", "flyserve, carry", "flyserve, reject")
_TEMPERATURES = (0.0, 0.3, 0.7, 1.0)


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """The amount of measuring.

    Attributes:
        problems: Held-out problems for the rules side by side.
        hard_problems: Problems harder than those of training.
        sweep_problems: Problems for each value of a factor.
        concurrency: Concurrent requests.
    """

    problems: Annotated[int, Field(ge=2), Quick(9)] = 3000
    hard_problems: Annotated[int, Field(ge=2), Quick(6)] = 2000
    sweep_problems: Annotated[int, Field(ge=2), Quick(3)] = 300
    concurrency: Annotated[int, Field(ge=1)] = 8

    def num_problems(self, group: str) -> int:
        """Return the number of problems of a group of settings."""
        return {MAIN: self.problems, HARD: self.hard_problems, HARD_GAP: self.hard_problems}.get(
            group, self.sweep_problems
        )


@dataclass(frozen=True)
class Setting:
    """One way of decoding, on one split.

    Attributes:
        line: Its name among the settings of its group.
        value: Value of the factor that its group varies; None if it varies none.
        split: Split of the problems.
    """

    line: str
    speculation: SpeculationParams
    value: float | str | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    split: Split = Split.HELD_OUT

    @property
    def key(self) -> str:
        """Key of the requests: equal requests of several groups are measured once."""
        said = {name: value for name, value in asdict(self.speculation).items() if value is not None}
        sampling = asdict(self.sampling)
        if self.sampling.temperature == 0:
            sampling.pop("coupling")
        text = json.dumps([said, sampling, self.split.value], sort_keys=True, default=str)
        return f"{self.speculation.mode}-{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"


@dataclass(frozen=True)
class Group:
    """Settings that are compared with each other.

    Attributes:
        name: Name of the group, and of the factor that it varies.
        title: Title in the report.
        settings: Settings, with the baseline of each among them.
        is_sweep: True if a factor varies.
        leading: Line whose tau is divided by that of the other lines; None compares none.
    """

    name: str
    title: str
    settings: tuple[Setting, ...]
    is_sweep: bool = True
    leading: str | None = None

    def baseline(self, setting: Setting) -> Setting:
        """Return plain decoding at the same temperature on the same problems."""
        return next(
            other
            for other in self.settings
            if other.speculation.mode is Mode.PLAIN
            and other.sampling.temperature == setting.sampling.temperature
        )


def make_groups(only: Sequence[str] = ()) -> list[Group]:
    """Return every group, or the named ones."""
    groups = [
        Group(MAIN, "The rules side by side", _rules(tuple(RULES), Split.HELD_OUT), is_sweep=False),
        Group(HARD, "Problems harder than trained on", _rules(_HARD_RULES, Split.HARD), is_sweep=False),
        Group("draft_length", "Draft length", (_plain(), *_draft_lengths()), leading="carry"),
        Group("window", "Window", (_plain(), *_varied("window", (2, 4, 6, 8)))),
        Group("threshold", "Entropy threshold, nats", (_plain(), *_varied("threshold", (0, 0.1, 0.3, 0.5)))),
        Group(
            "carry_after", "Matches before a window is carried", (_plain(), *_varied("carry_after", range(5)))
        ),
        Group("sub_drafter", "Sub-drafter", (_plain(), *_varied("sub_drafter", (True, False)))),
        Group("max_logprob_gap", "Largest gap of a rescued token, nats", (_plain(), *_gaps(Split.HELD_OUT))),
        Group(HARD_GAP, "Largest gap on the harder problems, nats", (_plain(Split.HARD), *_gaps(Split.HARD))),
        Group("temperature", "Temperature", tuple(_temperatures())),
    ]
    return [group for group in groups if not only or group.name in only]


def _rules(names: Sequence[str], split: Split) -> tuple[Setting, ...]:
    return tuple(Setting(name, RULES[name], split=split) for name in names)


def _plain(split: Split = Split.HELD_OUT) -> Setting:
    return Setting("plain", PLAIN, split=split)


def _gaps(split: Split) -> Iterator[Setting]:
    """Yield limits on the gap; a rule without one is the last."""
    for limit in (0.25, 0.45, 0.5, 0.7, 1.0, 2.0):
        yield Setting("carry", replace(CARRY, max_logprob_gap=limit), limit, split=split)
    yield Setting("carry", CARRY, "none", split=split)


def _draft_lengths() -> Iterator[Setting]:
    lines = {"carry": CARRY, "reject": REJECT, "shrink": SHRINK, "vllm": RULES["vllm"]}
    for line, rule in lines.items():
        for length in (4, 6, 8, 15, 25):
            yield Setting(line, replace(rule, draft_length=replace(rule.draft_length, max=length)), length)


def _varied(factor: str, values: Sequence[float]) -> Iterator[Setting]:
    for value in values:
        shown = ("on" if value else "off") if isinstance(value, bool) else value
        yield Setting("carry", replace(CARRY, **{factor: value}), shown)  # type: ignore[arg-type]


def _temperatures() -> Iterator[Setting]:
    for temperature in _TEMPERATURES:
        yield Setting("plain", PLAIN, temperature, SamplingParams(temperature=temperature))
        for coupling in Coupling:
            sampling = SamplingParams(temperature=temperature, coupling=coupling)
            for name, rule in {"exact": EXACT, "carry": CARRY}.items():
                yield Setting(f"{name}, {coupling.value}", rule, temperature, sampling)
