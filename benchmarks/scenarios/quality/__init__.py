"""Quality: accuracy and tokens per round of every rule, and of one factor at a time (an hour; resumable).

An interrupted run continues where it stopped: every response is kept in benchmarks/results/quality.
"""

from itertools import islice

from benchmarks.harness.command import Context
from benchmarks.harness.report import Report
from benchmarks.harness.system import RESULTS
from benchmarks.scenarios.quality.records import plan_work, run_work
from benchmarks.scenarios.quality.report import collect, make_report
from benchmarks.scenarios.quality.settings import Plan, make_groups
from demo.corpus import Family, Split, problems
from fly.response import DeploymentInfo
from flyserve.bench.progress import progress_bar
from flyserve.bench.tasks import Task
from flyserve.cli.bench import served_at
from flyserve.client import Client

__all__ = ["Plan", "run"]

_SEED = 4_2026


def run(plan: Plan, context: Context) -> Report:
    """Measure a running deployment, or the demo."""
    chosen = context.chosen([group.name for group in make_groups()])
    groups = [
        (group, draw_tasks(group.settings[0].split, plan.num_problems(group.name)))
        for group in make_groups(chosen)
    ]
    with served_at(context.address, context.verbose) as served, Client(served) as client:
        deployment = client.info()
        works = plan_work(
            [(setting, tasks) for group, tasks in groups for setting in group.settings],
            RESULTS / "quality" / _fingerprint(deployment),
        )
        total = sum(len(work.tasks) for work in works)
        with progress_bar(context.console, total) as advance:
            for work in works:
                run_work(client, work, plan.concurrency, advance)
    records = {work.setting.key: work.file.records for work in works}
    return make_report(plan, deployment, collect(groups, records))


def draw_tasks(split: Split, count: int) -> list[Task]:
    """Return the first `count` problems of a split, families in turn; every run draws the same."""
    sources = [(family, problems(_SEED, split, family)) for family in Family]
    drawn = (
        Task(f"{split.value}-{family.value}-{number:05d}", family, problem.prompt, problem.answer)
        for number in range(count)
        for family, source in sources
        for problem in (next(source),)
    )
    return list(islice(drawn, count))


def _fingerprint(deployment: DeploymentInfo) -> str:
    """Identify the weights: other weights give other responses, which are kept apart."""
    models = [model for model in (deployment.target, deployment.drafter) if model is not None]
    return "-".join(model.weight_fingerprint[:12] for model in models)
