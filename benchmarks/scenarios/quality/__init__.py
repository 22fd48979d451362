"""Quality: accuracy and tokens per round of every rule, and of one factor at a time (an hour)."""

from collections.abc import Sequence
from functools import partial

from benchmarks.harness.command import Context
from benchmarks.harness.report import Report
from benchmarks.scenarios.quality.measure import Record, draw_tasks, measure_all
from benchmarks.scenarios.quality.report import collect, make_report
from benchmarks.scenarios.quality.settings import Group, Plan, Setting, make_groups
from fly.response import DeploymentInfo
from flyserve.bench.progress import progress_bar
from flyserve.bench.tasks import Task
from flyserve.cli.bench import served_at
from flyserve.client import Client

__all__ = ["PARTS", "Plan", "run"]

PARTS = tuple(group.name for group in make_groups())

_RETRIES = 10


def run(plan: Plan, context: Context) -> Report:
    """Measure a running deployment, or the demo; settings that groups share are measured once."""
    chosen = context.chosen(PARTS)
    groups = [
        (group, draw_tasks(group.settings[0].split, plan.num_problems(group.name)))
        for group in make_groups(chosen)
    ]
    work = plan_work(groups)
    total = sum(len(tasks) for _, tasks in work.values())
    with (
        served_at(context.address, context.verbose) as served,
        Client(served, retries=_RETRIES) as client,
        progress_bar(context.console, total) as advance,
    ):
        deployment, records = client.info(), dict[str, dict[str, Record]]()
        for key, (setting, tasks) in work.items():
            part = f"{_fingerprint(deployment)}-{key}-{len(tasks)}"
            measure = partial(measure_all, client, setting, tasks, plan.concurrency, advance)
            records[key] = {each.problem: each for each in context.parts.measure(part, list[Record], measure)}
    return make_report(plan, deployment, collect(groups, records))


def plan_work(groups: Sequence[tuple[Group, list[Task]]]) -> dict[str, tuple[Setting, list[Task]]]:
    """Return every setting by its key, with the longest of its groups' draws of one split."""
    work: dict[str, tuple[Setting, list[Task]]] = {}
    for group, tasks in groups:
        for setting in group.settings:
            _, others = work.get(setting.key, (setting, []))
            work[setting.key] = (setting, max(others, tasks, key=len))
    return work


def _fingerprint(deployment: DeploymentInfo) -> str:
    """Identify the weights: other weights give other responses, which are kept apart."""
    models = [model for model in (deployment.target, deployment.drafter) if model is not None]
    return "-".join(model.weight_fingerprint[:12] for model in models)
