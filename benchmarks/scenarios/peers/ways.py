"""The ways of decoding with one model: FlyServe's services, and programs of others in their processes."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.harness import by_interpreter
from benchmarks.harness.command import Context
from benchmarks.harness.program import named_python
from benchmarks.harness.runs import Run, Send, checksum, sender
from benchmarks.harness.system import LOOKUP_DRAFTER, Flags, model_flags, running_fleets
from benchmarks.harness.worker import Worker, worker
from benchmarks.scenarios.peers.llama_cpp import llama_cpp
from benchmarks.scenarios.peers.plan import BASELINE, DEMO, MODES, NGRAMS, WAYS, Decode, Pair, Plan
from benchmarks.scenarios.peers.published_loop import PublishedLoop
from benchmarks.scenarios.peers.transformers_peer import TransformersPeer
from benchmarks.scenarios.peers.vllm_peer import NGRAM, VARIABLE, offline_vllm
from demo.real.fetch import GGUF_KINDS, SMOLLM2, gguf_file
from flyserve.core.response import Statistics
from router.text.tokenizer import Tokenizer

_NAMES = dict(zip(GGUF_KINDS, ("f16", "Q8"), strict=True))


@contextmanager
def running_ways(pair: Pair, plan: Plan, context: Context) -> Iterator[dict[str, Send]]:
    """Yield every way of decoding that is here, by name; the baseline is the first one."""
    with ExitStack() as stack:
        context.say(f"{pair.name}, {pair.threads} threads: starting the programs")
        decoders = _transformers(stack, pair, plan)
        if pair.name != DEMO:
            decoders |= _vllm(stack, pair, plan, context) | _llama_cpp(stack, pair)
        sends = {name: as_send(each, plan.max_new_tokens) for name, each in decoders.items()}
        sends |= _flyserve(stack, pair, pair.target, "FlyServe", plan)
        if pair.name != DEMO:
            sends |= _flyserve(stack, pair, gguf_file(SMOLLM2, kind=GGUF_KINDS[1]), "FlyServe Q8", plan)
            if python := named_python(VARIABLE):
                sends |= _flyserve(stack, pair, pair.target, "FlyServe on vLLM", plan, python)
        yield {name: sends[name] for name in WAYS if name in sends}


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
        name: stack.enter_context(worker(TransformersPeer, *models, method, threads=pair.threads))
        for name, method in methods.items()
    }
    if pair.drafter is not None:
        workers["published FLy loop"] = stack.enter_context(
            worker(PublishedLoop, *models, threads=pair.threads)
        )
    return {name: _asking(each) for name, each in workers.items()}


def _asking(peer: Worker) -> Decode:
    return lambda prompt, max_new_tokens: peer.ask("decode", prompt, max_new_tokens)


def _llama_cpp(stack: ExitStack, pair: Pair) -> dict[str, Decode]:
    """Start llama.cpp with the same weights in 16 and in 8 bits, without drafts and with each look-up."""
    ending_ids = Tokenizer.load(pair.target).eos_ids
    return {
        ", ".join(filter(None, [f"llama.cpp {name}", ngram])): stack.enter_context(
            llama_cpp(gguf_file(SMOLLM2, kind=kind), pair.threads, ngram, ending_ids)
        ).decode
        for kind, name in _NAMES.items()
        for ngram in ("", *NGRAMS)
    }


def _vllm(stack: ExitStack, pair: Pair, plan: Plan, context: Context) -> dict[str, Decode]:
    """Start vLLM without drafts and with its look-up, if it is here."""
    if (python := named_python(VARIABLE)) is None:
        context.leave_out(f"vLLM: left out; the variable {VARIABLE} names an interpreter that has it")
        return {}
    model, ending_ids = (
        (python, pair.target, plan.dtype.value, pair.threads),
        Tokenizer.load(pair.target).eos_ids,
    )
    return {
        name: stack.enter_context(offline_vllm(*model, speculation, ending_ids))
        for name, speculation in {"vLLM generate": "null", "vLLM ngram": NGRAM}.items()
    }


def _flyserve(
    stack: ExitStack, pair: Pair, target: Path, name: str, plan: Plan, vllm_python: str = ""
) -> dict[str, Send]:
    """Start router, target and drafter: a model if there is one, else the engine `suffix`."""
    size = {"max_sequences": 4, "kv_tokens": 4096, "threads": pair.threads}
    flags = {each: model_flags(each, plan.dtype.value, **size) for each in (target, pair.drafter) if each}
    drafter = ("services.drafter", *flags[pair.drafter]) if pair.drafter else LOOKUP_DRAFTER
    command = _on_vllm(vllm_python, pair, plan) if vllm_python else ("services.target", *flags[target])
    fleets = running_fleets(command, {name: [drafter]}, config={name: {"model": str(pair.target)}})
    client = stack.enter_context(fleets)[name]
    return {f"{name} {mode}": sender(client, way, plan.max_new_tokens) for mode, way in MODES.items()}


def _on_vllm(python: str, pair: Pair, plan: Plan) -> Flags:
    """Return the command of a target by an interpreter that has vLLM."""
    model = ("--engine", "vllm", "--model", str(pair.target), "--dtype", plan.dtype.value)
    size = ("--threads", str(pair.threads), "--max-sequences", "4")
    return (by_interpreter.__name__, python, "services.target", *model, *size)
