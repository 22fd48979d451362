"""The ways of decoding of one pair: FlyServe's stack, and other programs, each in a process of its own."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from benchmarks.harness.command import Context
from benchmarks.harness.deployed import deployed, one_of_each
from benchmarks.harness.runs import Run, Send, checksum, sender
from benchmarks.harness.worker import Worker, worker
from benchmarks.scenarios.peers.llama_cpp import llama_cpp
from benchmarks.scenarios.peers.plan import (
    BASELINE,
    DRAFT_LENGTH,
    REAL,
    WITH_DRAFTER,
    WITH_LOOKUP,
    Decode,
    Pair,
    Plan,
)
from benchmarks.scenarios.peers.published_loop import PublishedLoop
from benchmarks.scenarios.peers.transformers_peer import TransformersPeer
from benchmarks.scenarios.peers.vllm_peer import flyserve_on_vllm, offline_vllm, vllm_python
from demo.real.fetch import SMOLLM2, gguf_file
from flyserve.client import Client
from flyserve.core.request import SpeculationParams
from flyserve.core.response import Statistics
from router.text.tokenizer import Tokenizer

_ROOM = 4
"""Sequences of every engine, of which one decodes."""


@contextmanager
def running_ways(pair: Pair, plan: Plan, context: Context) -> Iterator[dict[str, Send]]:
    """Yield every way of decoding that is here, by name; the baseline is the first one."""
    with ExitStack() as stack:
        context.say(f"{pair.name} pair: starting the workers")
        decoders = _transformers(stack, pair, plan)
        # NOTE: after the workers: the deployment's end stops the processes that were started while it ran.
        deployment = one_of_each(pair.target, pair.drafter, plan.dtype, _ROOM, DRAFT_LENGTH)
        running = stack.enter_context(
            deployed(deployment, f"the {pair.name} pair's services", context.verbose)
        )
        ways = WITH_LOOKUP if pair.drafter is None else WITH_DRAFTER
        sends = _sends(stack, "stack", running.address, ways, plan)
        if pair.name == REAL:
            others, on_vllm = _others(stack, pair, plan, context)
            decoders, sends = decoders | others, sends | on_vllm
        yield {name: as_send(each, plan.max_new_tokens) for name, each in decoders.items()} | sends


def as_send(decode: Decode, max_new_tokens: int) -> Send:
    """Return a function that sends a prompt to another program."""

    def send(prompt: Sequence[int], number: int, repetition: int, _: str) -> Run:
        answer = decode(prompt, max_new_tokens)
        statistics = Statistics(
            emitted=len(answer.tokens), tau=answer.tau or 0.0, draft_rounds=int(answer.tau is not None)
        )
        return Run(number, repetition, answer.seconds, statistics, checksum(answer.tokens))

    return send


def _transformers(stack: ExitStack, pair: Pair, plan: Plan) -> dict[str, Decode]:
    """Start a worker for every method of transformers, and for the published loop."""
    models = pair.target, pair.drafter, str(plan.dtype)
    methods = {BASELINE: "generate", "transformers prompt lookup": "lookup"}
    if pair.drafter is not None:
        methods["transformers assisted"] = "assisted"
    workers = {
        name: stack.enter_context(worker(TransformersPeer, *models, method))
        for name, method in methods.items()
    }
    if pair.drafter is not None:
        workers["published FLy loop"] = stack.enter_context(worker(PublishedLoop, *models))
    return {name: _asking(each) for name, each in workers.items()}


def _asking(peer: Worker) -> Decode:
    return lambda prompt, max_new_tokens: peer.ask("decode", prompt, max_new_tokens)


def _others(
    stack: ExitStack, pair: Pair, plan: Plan, context: Context
) -> tuple[dict[str, Decode], dict[str, Send]]:
    """Start llama.cpp and vLLM with the real model, if they are here."""
    decoders, sends, ending_ids = dict[str, Decode](), dict[str, Send](), Tokenizer.load(pair.target).eos_ids
    if plan.llama_server is None:
        context.say("llama.cpp: left out; `--set llama_server=PATH` names its program llama-server")
    else:
        server = stack.enter_context(llama_cpp(plan.llama_server, gguf_file(SMOLLM2), ending_ids))
        decoders["llama.cpp"] = server.decode
    if (python := vllm_python()) is None:
        context.say("vLLM: left out; the variable VLLM_PYTHON names an interpreter that has it")
    else:
        model = python, pair.target, plan.dtype.value, _ROOM
        decoders["vLLM generate"] = stack.enter_context(offline_vllm(*model, ending_ids)).decode
        address = stack.enter_context(flyserve_on_vllm(*model))
        sends = _sends(stack, "stack on vLLM", address, WITH_LOOKUP, plan)
    return decoders, sends


def _sends(
    stack: ExitStack, place: str, address: str, ways: Mapping[str, SpeculationParams], plan: Plan
) -> dict[str, Send]:
    client = stack.enter_context(Client(address))
    return {f"{place}, {name}": sender(client, way, plan.max_new_tokens) for name, way in ways.items()}
