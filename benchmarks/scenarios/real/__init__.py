"""Real models on real traffic: chat, code, agents' traces, reasoning with verifiers (40 minutes)."""

from functools import partial

from benchmarks.harness.command import Context
from benchmarks.harness.program import Program
from benchmarks.harness.report import Report
from benchmarks.harness.runs import Runs, measure_parts, measure_settings, sender
from benchmarks.harness.system import running_fleets
from benchmarks.harness.workloads import AGENTS, WORKLOADS, draw, workload_source
from benchmarks.scenarios.real.plan import MODES, PAIRS, Plan, RealPair
from benchmarks.scenarios.real.report import make_report
from demo.real.fetch import is_fetched, model_folder

__all__ = ["PARTS", "Plan", "run"]

PARTS = WORKLOADS


def run(plan: Plan, context: Context) -> Report:
    """Measure every pair on every kind of traffic; what is not here is left out."""
    with workload_source(context) as source:
        parts = measure_parts(context, PARTS, lambda part: _measure(part, plan, context, source))
    return make_report(context.machine, plan, parts)


def _measure(part: str, plan: Plan, context: Context, source: Program | None) -> dict[str, Runs]:
    if source is None:
        return {}
    missing = [pair.name for pair in PAIRS if not all(map(is_fetched, pair.models))]
    if missing:
        context.leave_out(f"{part}: without {', '.join(missing)}, not here: `make real` fetches the models")
    here = [pair for pair in PAIRS if pair.name not in missing]
    return {pair.name: _measure_pair(part, pair, plan, context, source) for pair in here}


def _measure_pair(part: str, pair: RealPair, plan: Plan, context: Context, source: Program) -> Runs:
    """Send the prompts in turn; agents continue their own requests, so that a cache can have the prefix."""
    folder = model_folder(pair.target)
    work = draw(source, part, folder, plan.prompts[part], plan.agent_tokens)
    # NOTE: room for the two latest prompts of every way beside the one that runs: what a full cache drops
    # depends on the order of the ways, and not on drafts.
    kv_tokens = 3 * len(MODES) * (max(map(len, work.prompts)) + plan.max_new_tokens)
    target, drafter = pair.target_command(kv_tokens), pair.drafter_command(kv_tokens)
    with running_fleets(target, {part: [drafter]}, config={part: {"model": str(folder)}}) as clients:
        client, length = clients[part], plan.max_new_tokens
        sends = {mode: sender(client, way, length, work.judge) for mode, way in MODES.items()}
        interleave = partial(context.interleave, f"{part}, {pair.name}")
        return measure_settings(sends, work.prompts, plan.repeat, part == AGENTS, interleave)
