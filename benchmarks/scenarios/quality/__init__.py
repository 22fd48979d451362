"""Quality: accuracy and tokens per round of every rule, by family of problems (40 minutes)."""

from benchmarks.harness.command import Context
from benchmarks.harness.report import Report
from benchmarks.scenarios.quality.measure import Record, draw_tasks, measure_all
from benchmarks.scenarios.quality.report import Records, make_report
from benchmarks.scenarios.quality.settings import RULES, Group, Plan, make_groups
from flyserve.bench.progress import progress_bar
from flyserve.cli.bench import served_at
from flyserve.client import Client

__all__ = ["PARTS", "Plan", "run"]

PARTS = tuple(group.name for group in make_groups(Plan()))
_RETRIES = 10


def run(plan: Plan, context: Context) -> Report:
    """Measure a running deployment, or the demo."""
    groups = make_groups(plan, context.only)
    with served_at(context.address, context.verbose) as served, Client(served, retries=_RETRIES) as client:
        deployment = client.info()
        found = [(group, _measure(client, group, plan, context)) for group in groups]
    return make_report(context.machine, plan, deployment, found)


def _measure(client: Client, group: Group, plan: Plan, context: Context) -> Records:
    """Return the records of every rule."""
    tasks, found = draw_tasks(group.split, group.num_problems), dict[str, dict[str, Record]]()
    with progress_bar(context.console, len(tasks) * len(RULES), group.title) as advance:
        for name, way in RULES.items():
            records = measure_all(client, way, tasks, plan.concurrency, advance)
            found[name] = {each.problem: each for each in records}
    return found
