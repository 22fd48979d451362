"""The cost of grammars' masks in a verification, at a vocabulary of 128,000."""

import json
import random
import time
from collections.abc import Sequence
from contextlib import closing
from statistics import median

from benchmarks.harness.command import Context
from benchmarks.harness.system import DEMO_MODELS
from benchmarks.scenarios.acceleration.measure import GRAMMAR
from benchmarks.scenarios.acceleration.plan import DRAFT_LENGTH, Plan
from benchmarks.scenarios.capacity.hardware import H200, LLAMA_70B, Replica
from fly.request import SamplingParams
from router.requests.grammars import library_form
from services.common.grammars.follower import GrammarFollower
from services.common.grammars.host import GrammarHost, HostedGrammar, TokenizerSource
from services.common.grammars.library import compile_grammar, load_tokenizer
from services.common.grammars.limits import REPLICA_LIMITS
from services.engine.base import ForwardInput, KvSlot
from services.engine.head.head import Head

MASKS = "masks"
MASKED, UNMASKED = "with a grammar", "without"
VOCABULARY = 128_000
_RESPONSE_TOKENS = 160
_MODEL = Replica(LLAMA_70B, H200, num_gpus=2, context_tokens=2048)
FORWARD_S = _MODEL.base_s
Seconds = dict[int, dict[str, list[float]]]
"""Median seconds of a verification in every response, by the number of sequences and the setting."""


def measure_masks(plan: Plan, context: Context) -> Seconds:
    """Measure verifications of every number of sequences, with masks and without."""
    return {number: _measure(plan, context, number) for number in plan.streams}


def large_tokenizer() -> str:
    """Return the demo's `tokenizer.json`, filled up to 128,000 tokens by pairs of its own."""
    tokenizer = json.loads((DEMO_MODELS / "target" / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    special = {each["content"] for each in tokenizer["added_tokens"]}
    pieces = [piece for piece in vocabulary if piece not in special]
    pairs = (first + second for first in pieces for second in pieces)
    fresh = (pair for pair in pairs if pair not in vocabulary)
    while len(vocabulary) < VOCABULARY:
        vocabulary[next(fresh)] = len(vocabulary)
    return json.dumps(tokenizer)


def draw_response(follower: GrammarFollower, rng: random.Random) -> list[int]:
    """Return random tokens that the grammar allows, one after the other, from the start of a response."""
    tokens: list[int] = []
    while len(tokens) < _RESPONSE_TOKENS:
        follower.move(tokens)
        allowed = [
            32 * index + bit
            for index, word in enumerate(follower.mask(()).tolist())
            if word
            for bit in range(32)
            if word >> bit & 1
        ]
        if not allowed:
            break
        tokens.append(rng.choice(allowed))
    return tokens


def _measure(plan: Plan, context: Context, num_streams: int) -> dict[str, list[float]]:
    """Return the seconds of every verification, with masks and without, on random logits.

    The forward is a pause of the simulated model's time: masks are computed meanwhile.
    """
    import torch

    text, form, rng = large_tokenizer(), library_form(GRAMMAR), random.Random(0)
    tokenizer = load_tokenizer(text, VOCABULARY)
    compiled = compile_grammar(tokenizer, form)
    with closing(GrammarHost()) as host:
        grammar = HostedGrammar(host, TokenizerSource("", lambda: text, VOCABULARY), REPLICA_LIMITS)
        grammar.compile(form)
        responses = [
            draw_response(GrammarFollower(compiled.deep_copy(), VOCABULARY, tokenizer.eos_tokens), rng)
            for _ in range(num_streams)
        ]
        steps = min(len(response) for response in responses) // (DRAFT_LENGTH + 1)
        rows = torch.randn(
            num_streams * (DRAFT_LENGTH + 1), VOCABULARY, generator=torch.Generator().manual_seed(0)
        )
        forward_s = _MODEL.base_s + num_streams * _MODEL.sequence_s
        heads = {name: Head(VOCABULARY, mask_patience_s=60) for name in (MASKED, UNMASKED)}

        def verify(name: str, turn: int) -> list[float]:
            """Return the seconds of every verification of one response of each sequence."""
            seconds, slots = [], [KvSlot(number) for number in range(num_streams)]
            for step in range(steps):
                batch = [
                    _input(slot, response, step, grammar if name == MASKED else None)
                    for slot, response in zip(slots, responses, strict=True)
                ]
                started = time.perf_counter()
                heads[name].start(batch)
                time.sleep(forward_s)
                heads[name](rows, batch)
                seconds.append(time.perf_counter() - started)
            for slot in slots:
                heads[name].forget(slot)
            return seconds

        found = context.interleave(f"{num_streams} streams", (MASKED, UNMASKED), plan.mask_repeat, verify)
    # NOTE: in the first verification the followers begin, which a prefill hides in a deployment.
    return {name: [median(turn[1:]) for turn in turns] for name, turns in found.items()}


def _input(slot: KvSlot, response: Sequence[int], step: int, grammar: HostedGrammar | None) -> ForwardInput:
    """Return the input of one verification: a token of the response, and the next ones as drafts."""
    first = step * (DRAFT_LENGTH + 1)
    prompt, drafts = [0], response[first : first + DRAFT_LENGTH]
    history = [*prompt, *response[:first], *drafts]
    start = len(history) - len(drafts) - 1
    return ForwardInput(
        slot=slot,
        start=start,
        tokens=history[start:],
        num_outputs=len(drafts) + 1,
        sampling=SamplingParams(),
        prompt_length=len(prompt),
        history=history,
        drafts=(*drafts, -1),
        grammar=grammar,
    )
