"""Rescues to look at: some that changed the wording only, and some that cost the answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.quality.records import Record, Rescue
from demo.tasks import Task

_MOST = 2


@dataclass(frozen=True, slots=True)
class Example:
    """One problem whose response has rescued tokens."""

    task: Task
    record: Record


def right_ones(
    tasks: Sequence[Task], runs: Mapping[str, Record], baseline: Mapping[str, Record]
) -> list[Example]:
    """Problems solved both ways, with few rescues, so that each can be seen."""
    found = _with_rescues(tasks, runs, baseline, is_solved=True)
    return sorted(found, key=lambda example: len(example.record.rescues))[:_MOST]


def wrong_ones(
    tasks: Sequence[Task], runs: Mapping[str, Record], baseline: Mapping[str, Record]
) -> list[Example]:
    """Problems that plain decoding solved and this setting did not; those with a digit at stake first."""
    found = _with_rescues(tasks, runs, baseline, is_solved=False)
    return sorted(found, key=lambda example: not _has_content(example))[:_MOST]


def marked(record: Record) -> str:
    """The response with every rescued token in brackets, and the target's own token behind it."""
    text, at = "", 0
    for rescue in record.rescues:
        end = rescue.start + len(rescue.text)
        if rescue.start < at or end > len(record.response):
            continue
        text += record.response[at : rescue.start] + _bracketed(rescue)
        at = end
    return text + record.response[at:]


def _bracketed(rescue: Rescue) -> str:
    shown, choice = rescue.text.strip() or rescue.text, rescue.choice.strip() or rescue.choice
    lead = " " if rescue.text.startswith(" ") else ""
    return f"{lead}[{shown} | {choice}]"


def _with_rescues(
    tasks: Sequence[Task], runs: Mapping[str, Record], baseline: Mapping[str, Record], is_solved: bool
) -> list[Example]:
    return [
        Example(task, runs[task.id])
        for task in tasks
        if task.id in runs
        and task.id in baseline
        and baseline[task.id].is_solved
        and runs[task.id].is_solved == is_solved
        and runs[task.id].rescues
    ]


def _has_content(example: Example) -> bool:
    return any(rescue.is_content for rescue in example.record.rescues)
