"""Starts what is compared, measures it, and sums it up: pair by pair, then the engine alone."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict

from rich.console import Console

from benchmarks.peers.figures import EngineFigures, summarize_alone, summarize_engine, summarize_streams
from benchmarks.peers.measure import (
    Prompts,
    Run,
    StreamsRun,
    measure_alone,
    measure_streams,
    measure_ways,
    num_alone,
)
from benchmarks.peers.pairs import Pair, load_pair
from benchmarks.peers.plan import Plan
from benchmarks.peers.results import PairResult
from benchmarks.peers.settings import SETTINGS, STREAM_METHODS, Decode, Place
from benchmarks.peers.stack import running_stack, stack_decoder, streams_rate
from benchmarks.peers.verification import WAYS
from benchmarks.peers.workers import Worker, worker
from flyserve.bench.progress import progress_bar
from flyserve.client import Client

_Bandwidth = Mapping[str, float]


def run_pair(name: str, plan: Plan, console: Console, verbose: bool = False) -> PairResult:
    """One pair in every place, interleaved, with a progress bar.

    Raises:
        FlyServeError: Something could not be started, or rejected a request.
    """
    pair = load_pair(name, max(plan.prompts, *plan.streams))
    with ExitStack() as stack:
        console.print(f"{name} pair: starting the workers", markup=False)
        workers = _start_workers(stack, pair, plan.dtype)
        before = workers["in process"].ask("bandwidth")
        # NOTE: after the workers: the stack ends the processes that were started while it ran.
        client = stack.enter_context(running_stack(pair, plan.dtype, verbose))
        runs = _run_alone(_decoders(workers, client), pair, plan, console)
        streams = _run_streams(client, pair, plan, console)
        after = workers["in process"].ask("bandwidth")
        computes = workers["in process"].description
    return _result(pair, computes, [before, after], runs, streams)


def run_engine(plan: Plan, console: Console) -> list[EngineFigures]:
    """The aligned pair's target alone: verification of many sequences at once, and one by one.

    Raises:
        NotReady: A worker could not be started.
    """
    pair, found = load_pair("aligned", 1), []
    total = len(plan.engine_dtypes) * len(WAYS) * len(plan.rows) * plan.repetitions
    with progress_bar(console, total, "engine alone") as advance:
        for dtype in plan.engine_dtypes:
            with worker("verification", pair.target, pair.drafter, dtype) as rig:

                def seconds(way: str, rows: int, rig: Worker = rig) -> float:
                    return float(rig.ask("seconds", way=way, num_rows=rows))

                times = measure_ways(seconds, WAYS, plan.rows, plan.repetitions, advance)
            found += summarize_engine(dtype, times)
    return found


def _start_workers(stack: ExitStack, pair: Pair, dtype: str) -> dict[str, Worker]:
    """By the method where each has its own process, by the place where methods share one."""
    found = {}
    for setting in SETTINGS:
        if setting.place is Place.TRANSFORMERS:
            context = worker("transformers", pair.target, pair.drafter, dtype, setting.method)
            found[setting.method] = stack.enter_context(context)
    found["in process"] = stack.enter_context(worker("in process", pair.target, pair.drafter, dtype))
    return found


def _decoders(workers: Mapping[str, Worker], client: Client) -> dict[str, Decode]:
    def decoder(place: Place, method: str) -> Decode:
        if place is Place.STACK:
            return stack_decoder(client, method)
        return workers["in process" if place is Place.IN_PROCESS else method].decoder(method)

    return {setting.name: decoder(setting.place, setting.method) for setting in SETTINGS}


def _run_alone(
    decoders: Mapping[str, Decode], pair: Pair, plan: Plan, console: Console
) -> dict[str, list[Run]]:
    prompts = pair.prompts[: plan.prompts]
    total = num_alone(len(decoders), len(prompts), plan.repetitions)
    with progress_bar(console, total, f"{pair.name} pair, one at a time") as advance:
        return measure_alone(decoders, prompts, plan.max_new_tokens, plan.repetitions, advance)


def _run_streams(client: Client, pair: Pair, plan: Plan, console: Console) -> list[StreamsRun]:
    def rate(method: str, prompts: Prompts) -> float:
        return streams_rate(stack_decoder(client, method), prompts, plan.max_new_tokens)

    total = len(STREAM_METHODS) * len(plan.streams) * plan.repetitions
    with progress_bar(console, total, f"{pair.name} pair, several at once") as advance:
        return measure_streams(rate, STREAM_METHODS, pair.prompts, plan.streams, plan.repetitions, advance)


def _result(
    pair: Pair,
    computes: Mapping[str, str],
    bandwidths: Sequence[_Bandwidth],
    runs: Mapping[str, Sequence[Run]],
    streams: Sequence[StreamsRun],
) -> PairResult:
    limit = max(bandwidth["limit_bytes_per_s"] for bandwidth in bandwidths)
    weight_bytes = int(bandwidths[0]["weight_bytes"])
    return PairResult(
        name=pair.name,
        note=pair.note,
        computes=computes,
        weight_bytes=weight_bytes,
        limit_bytes_per_s=limit,
        alone=tuple(summarize_alone(runs, weight_bytes, limit)),
        streams=tuple(summarize_streams(streams)),
        runs={
            "alone": {name: list(_as_data(measured)) for name, measured in runs.items()},
            "streams": [asdict(run) for run in streams],
        },
    )


def _as_data(runs: Sequence[Run]) -> Iterator[dict[str, object]]:
    """Without the tokens, which are not what is measured."""
    for run in runs:
        yield {
            "prompt": run.prompt,
            "repetition": run.repetition,
            "tokens": len(run.answer.tokens),
            "seconds": run.answer.seconds,
            "tau": run.answer.tau,
        }
