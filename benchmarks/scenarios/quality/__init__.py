"""Quality: accuracy and tokens per round of every rule, by family of problems (40 minutes)."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks.harness.client import generate
from benchmarks.harness.command import Context
from benchmarks.harness.report import Report
from benchmarks.harness.runs import Run, Runs
from benchmarks.scenarios.quality.plan import RULES, TITLES, Plan
from benchmarks.scenarios.quality.report import make_report
from demo.tasks import Task, evaluation_tasks
from flyserve.bench.progress import Advance, progress_bar
from flyserve.bench.tasks import render
from flyserve.cli.bench import served_at
from flyserve.client import Client

__all__ = ["PARTS", "Plan", "run"]

PARTS = tuple(TITLES)
_RETRIES, _MAX_NEW_TOKENS = 10, 512


def run(plan: Plan, context: Context) -> Report:
    """Measure the demo."""
    with served_at(None, context.verbose) as served, Client(served, retries=_RETRIES) as client:
        found = {part: _measure(client, part, plan, context) for part in context.chosen(PARTS)}
        return make_report(context.machine, plan, client.info(), found)


def _measure(client: Client, part: str, plan: Plan, context: Context) -> Runs:
    tasks = evaluation_tasks(*plan.drawn(part))
    with progress_bar(context.console, len(tasks) * len(RULES), TITLES[part]) as advance:
        return measure_rules(client, tasks, plan.concurrency, advance)


def measure_rules(client: Client, tasks: Sequence[Task], concurrency: int, advance: Advance) -> Runs:
    """Send all problems under every rule, several at a time; each rule has a cache salt of its own."""

    def measure(numbered: tuple[str, int]) -> Run:
        name, number = numbered
        prompt = render(tasks[number].prompt)
        response, seconds = generate(client, prompt, _MAX_NEW_TOKENS, RULES[name], cache_salt=name)
        advance()
        is_solved = tasks[number].is_solved_by(response.text)
        return Run(number, 0, seconds, response.statistics, is_solved=is_solved)

    pool = ThreadPoolExecutor(concurrency)
    try:
        return {name: list(pool.map(measure, [(name, at) for at in range(len(tasks))])) for name in RULES}
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
