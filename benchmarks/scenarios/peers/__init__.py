"""FlyServe next to transformers, vLLM, llama.cpp: the same prompts, one thread each, interleaved."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from uuid import uuid4

from benchmarks.aligned_pair.folders import ensure_pair
from benchmarks.aligned_pair.recipe import PairRecipe
from benchmarks.harness.client import Prompts, demo_prompts, generate, random_prompts
from benchmarks.harness.command import Context
from benchmarks.harness.deployed import deployed, one_of_each
from benchmarks.harness.report import Report
from benchmarks.harness.system import BUILD, DEMO_MODELS
from benchmarks.harness.worker import Worker, worker
from benchmarks.scenarios.peers.llama_cpp import llama_cpp
from benchmarks.scenarios.peers.measure import (
    DRAFT_LENGTH,
    STACK_SPECULATIONS,
    STREAM_METHODS,
    Answer,
    Decode,
    Place,
    Plan,
    Setting,
    StreamsRun,
    measure_alone,
    measure_streams,
    settings_of,
)
from benchmarks.scenarios.peers.published_loop import PublishedLoop
from benchmarks.scenarios.peers.real_prompts import real_prompts
from benchmarks.scenarios.peers.report import PairRuns, make_report
from benchmarks.scenarios.peers.transformers_peer import TransformersPeer
from benchmarks.scenarios.peers.vllm_peer import flyserve_on_vllm, offline_vllm, vllm_python
from demo.real.fetch import SMOLLM2, gguf_file, is_fetched, model_folder
from flyserve.client import Client
from router.text.tokenizer import Tokenizer

__all__ = ["PARTS", "Plan", "run"]

REAL = "smollm2"
Peer = Callable[[str], Decode]
"""Another program: a function from the name of a method to decoding by it."""
PARTS = ("demo", "aligned", REAL)
_MOST_STREAMS = 16


@dataclass(frozen=True, slots=True)
class Pair:
    """A target, its drafter if it has one, and prompts."""

    name: str
    target: Path
    drafter: Path | None
    prompts: Prompts
    settings: tuple[Setting, ...]


def run(plan: Plan, context: Context) -> Report:
    """Measure each pair in every place."""
    pairs = []
    for name in context.chosen(PARTS):
        if name == REAL and not is_fetched(SMOLLM2):
            context.say(f"{REAL}: left out, its model is not here: `make real` fetches it")
        else:
            pairs.append(context.parts.measure(name, PairRuns, partial(_run_pair, name, plan, context)))
    return make_report(context.machine, plan, pairs)


def load_pair(name: str, num_prompts: int, peers: frozenset[Place] = frozenset()) -> Pair:
    """Return a pair, or the real model with `peers`; the aligned pair is built if it does not exist yet."""
    if name == "demo":
        models = DEMO_MODELS / "target", DEMO_MODELS / "drafter"
        return Pair(name, *models, demo_prompts(num_prompts), settings_of(has_drafter=True))
    if name == REAL:
        settings, folder = settings_of(has_drafter=False, peers=peers), model_folder(SMOLLM2)
        return Pair(name, folder, None, real_prompts(folder, num_prompts), settings)
    recipe = PairRecipe()
    folders = ensure_pair(recipe, BUILD / "aligned")
    prompts = random_prompts(range(recipe.vocab_size), num_prompts)
    return Pair(name, folders.target, folders.drafter, prompts, settings_of(has_drafter=True))


def _run_pair(name: str, plan: Plan, context: Context) -> PairRuns:
    pair = load_pair(name, max(plan.prompts, *plan.streams), _peers(plan))
    with ExitStack() as stack:
        if name == REAL:
            _say_what_is_left_out(plan, context)
        context.say(f"{name} pair: starting the workers")
        workers = _start_workers(stack, pair, plan.dtype)
        # NOTE: after the workers: the deployment's end stops the processes that were started while it ran.
        deployment = one_of_each(pair.target, pair.drafter, plan.dtype, _MOST_STREAMS, DRAFT_LENGTH)
        running = stack.enter_context(deployed(deployment, f"the {name} pair's services", context.verbose))
        client = stack.enter_context(Client(running.address))
        peers = _start_peers(stack, pair, plan)
        alone = measure_alone(
            _decoders(pair, workers, client, peers),
            pair.prompts[: plan.prompts],
            plan.max_new_tokens,
            plan.repeat,
            partial(context.interleave, f"{name} pair, one at a time"),
        )
        streams = _run_streams(client, pair, plan, context)
        return PairRuns(name, alone, streams)


def _start_workers(stack: ExitStack, pair: Pair, dtype: str) -> dict[str, Worker]:
    """Return the workers by their method of transformers."""
    models = pair.target, pair.drafter, str(dtype)

    def start(method: str) -> Worker:
        if method == "published":
            return stack.enter_context(worker(PublishedLoop, *models))
        return stack.enter_context(worker(TransformersPeer, *models, method))

    methods = [setting.method for setting in pair.settings if setting.place is Place.TRANSFORMERS]
    return {method: start(method) for method in methods}


def _peers(plan: Plan) -> frozenset[Place]:
    """Return the places of other programs that are here."""
    llama = [Place.LLAMA_CPP] if plan.llama_server is not None else []
    return frozenset([*llama, *([Place.VLLM, Place.VLLM_STACK] if vllm_python() else [])])


def _say_what_is_left_out(plan: Plan, context: Context) -> None:
    if plan.llama_server is None:
        context.say("llama.cpp: left out; `--set llama_server=PATH` names its program llama-server")
    if vllm_python() is None:
        context.say("vLLM: left out; the variable VLLM_PYTHON names an interpreter that has it")


def _start_peers(stack: ExitStack, pair: Pair, plan: Plan) -> dict[Place, Peer]:
    """Start the other programs with the real model; another pair has none."""
    found, python = dict[Place, Peer](), vllm_python()
    if pair.name != REAL:
        return found
    ending_ids = Tokenizer.load(pair.target).eos_ids
    if plan.llama_server is not None:
        server = stack.enter_context(llama_cpp(plan.llama_server, gguf_file(SMOLLM2), ending_ids))
        found[Place.LLAMA_CPP] = lambda _: server.decode
    if python is not None:
        model = python, pair.target, plan.dtype.value, _MOST_STREAMS
        offline = stack.enter_context(offline_vllm(*model, ending_ids))
        found[Place.VLLM] = lambda _: offline.decode
        client = stack.enter_context(Client(stack.enter_context(flyserve_on_vllm(*model))))
        found[Place.VLLM_STACK] = partial(stack_decoder, client)
    return found


def _decoders(
    pair: Pair, workers: Mapping[str, Worker], client: Client, peers: Mapping[Place, Peer]
) -> dict[str, Decode]:
    def decoder(place: Place, method: str) -> Decode:
        if place in peers:
            return peers[place](method)
        if place is Place.STACK:
            return stack_decoder(client, method)
        return partial(workers[method].ask, "decode")

    return {setting.name: decoder(setting.place, setting.method) for setting in pair.settings}


def _run_streams(client: Client, pair: Pair, plan: Plan, context: Context) -> list[StreamsRun]:
    def rate(method: str, prompts: Sequence[Sequence[int]]) -> float:
        return streams_rate(stack_decoder(client, method), prompts, plan.max_new_tokens)

    interleave = partial(context.interleave, f"{pair.name} pair, several at once")
    return measure_streams(rate, STREAM_METHODS, pair.prompts, plan.streams, plan.repeat, interleave)


def stack_decoder(client: Client, method: str) -> Decode:
    """Return decoding through the stack, timed at the client; every request has its own cache salt."""

    def decode(prompt: Sequence[int], max_new_tokens: int) -> Answer:
        way = STACK_SPECULATIONS[method]
        response, seconds = generate(client, prompt, max_new_tokens, way, uuid4().hex)
        tokens = tuple(token.id for token in response.tokens)
        return Answer(tokens, seconds, response.statistics.tau or None)

    return decode


def streams_rate(decode: Decode, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> float:
    """Return tokens per second of all prompts together, decoded at once, until the last response ends."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        start = time.perf_counter()
        answers = list(pool.map(lambda prompt: decode(prompt, max_new_tokens), prompts))
        seconds = time.perf_counter() - start
    return sum(len(answer.tokens) for answer in answers) / seconds
