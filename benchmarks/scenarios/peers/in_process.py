"""FlyServe without its services: engine, drafter and rule in one process, one response at a time."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.scenarios.peers.measure import DRAFT_LENGTH, Answer
from fly.messages import Open, Role, Verification
from fly.presets import DEFAULT_PRESET, EXACT, PRESETS
from fly.sequence import SequenceMirror
from fly.speculation import Speculation
from fly.types import Decision, FlyRule, Mode, ResponseLimits
from router.generation.round import make_evidence
from router.text.tokenizer import Tokenizer
from services.drafter.drafting import Proposer, draft
from services.engine.base import Job, KvSlot, Runner
from services.engine.config import Dtype, ModelConfig
from services.engine.forward.torch_runner import TorchRunner, load_runner
from services.engine.sequence import EngineSequence

_CHUNK_TOKENS = 256
_KV_TOKENS = 4096
T = TypeVar("T")


class Side:
    """One model's side of a response; updates name absolute positions, as on the wire."""

    def __init__(self, runner: Runner, slot: KvSlot, opening: Open) -> None:
        info = runner.info
        self.sequence = EngineSequence(opening, slot, info.vocab_size, runner.kv_capacity, _CHUNK_TOKENS)
        self._runner = runner
        self._view = SequenceMirror()

    def update(self, speculation: Speculation, drafts: Sequence[int] = ()) -> None:
        """Make the side's sequence that of the response, followed by drafts."""
        update = self._view.update(speculation.sequence, drafts, speculation.decided_length)
        self.sequence.apply(update)

    def record_draft(self, drafts: Sequence[int]) -> None:
        """Record that the side has appended its own draft."""
        self._view.append(drafts)

    def run(self, job: Job[T]) -> T:
        """Run a job to its end, one forward after the other."""
        try:
            work = next(job)
            while True:
                work = job.send(self._runner.forward([work])[0])
        except StopIteration as stop:
            result: T = stop.value
            return result


class InProcess:
    """The models in this process; the methods of decoding are the modes, without a drafter only `plain`."""

    def __init__(self, target: Path, drafter: Path | None, dtype: str) -> None:
        self._target = load(target, Role.TARGET, dtype)
        self._drafter = None if drafter is None else load(drafter, Role.DRAFTER, dtype)
        self._ending_ids = frozenset(Tokenizer.load(target).eos_ids)

    def describe(self) -> dict[str, Any]:
        """Describe how the models compute."""
        runners = {"target": self._target, "drafter": self._drafter}
        return {role: runner.description for role, runner in runners.items() if runner is not None}

    def bandwidth(self) -> dict[str, float]:
        """Return the bytes that a forward of the target reads, and the rate at which this machine reads."""
        found = self._target.measure_bandwidth()
        return {"weight_bytes": found.weight_bytes, "limit_bytes_per_s": found.limit_bytes_per_s}

    def decode(
        self, method: str, prompt: Sequence[int], max_new_tokens: int, preset: str = DEFAULT_PRESET
    ) -> Answer:
        """Decode one response in a mode, with greedy sampling."""
        mode = Mode(method)
        rule = PRESETS[preset] if mode is Mode.FLY else EXACT
        draft_length = 0 if mode is Mode.PLAIN else DRAFT_LENGTH
        limits = ResponseLimits(max_new_tokens, self._ending_ids)
        speculation, room = Speculation(prompt, rule, limits), len(prompt) + max_new_tokens + DRAFT_LENGTH + 1
        start = time.perf_counter()
        opening = Open("benchmark", 0, entropy=rule.entropy, with_gaps=rule.max_logprob_gap is not None)
        with ExitStack() as stack:
            target = stack.enter_context(open_side(self._target, room, opening))
            drafter = self._drafter and stack.enter_context(open_side(self._drafter, room, opening))
            while speculation.finish_reason is None:
                drafts = self._propose(drafter, speculation, rule, draft_length) if drafter else ()
                verify(target, speculation, drafts)
        seconds = time.perf_counter() - start
        tokens = tuple(speculation.sequence.ids[len(prompt) : speculation.decided_length])
        return Answer(tokens, seconds, speculation.statistics.tau or None)

    def _propose(
        self, drafter: Side, speculation: Speculation, rule: FlyRule, draft_length: int
    ) -> tuple[int, ...]:
        max_tokens = min(draft_length, speculation.max_drafts)
        if max_tokens <= 0:
            return ()
        drafter.update(speculation)
        ending_ids = self._ending_ids if rule.guard_stops else frozenset[int]()
        drafted = drafter.run(draft(drafter.sequence, max_tokens, ending_ids, Proposer()))
        drafter.record_draft(drafted.tokens)
        return drafted.tokens


def verify(target: Side, speculation: Speculation, drafts: tuple[int, ...]) -> Decision:
    """Let the target verify the drafts, and decide the round."""
    target.update(speculation, drafts)
    scores = target.run(target.sequence.score(len(drafts) + 1))
    excluded = frozenset(index for index, is_excluded in enumerate(scores.excluded) if is_excluded)
    return speculation.apply(
        make_evidence(
            drafts, Verification(0, scores.choices, scores.entropies, excluded, gaps=scores.gaps[:-1])
        )
    )


def load(folder: Path, role: Role, dtype: str, max_sequences: int = 1) -> TorchRunner:
    """Load a model for this process."""
    return load_runner(
        ModelConfig(
            role=role, model=folder, dtype=Dtype(dtype), max_sequences=max_sequences, kv_tokens=_KV_TOKENS
        )
    )


@contextmanager
def open_side(runner: Runner, num_tokens: int, opening: Open) -> Iterator[Side]:
    """Open a sequence of at most `num_tokens` tokens.

    Raises:
        MemoryError: The runner has no room for it.
    """
    slot = runner.allocate(num_tokens)
    if slot is None:
        raise MemoryError(f"no room for a sequence of {num_tokens} tokens")
    try:
        yield Side(runner, slot, opening)
    finally:
        runner.free(slot)
