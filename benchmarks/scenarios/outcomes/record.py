"""Recorded rounds: the pair decodes in this process, without a socket, and the drafter's scores are kept."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness.client import Prompts, demo_prompts, random_prompts
from benchmarks.harness.system import BUILD, DEMO_MODELS
from benchmarks.scenarios.acceleration.workloads import RECIPE
from benchmarks.scenarios.outcomes.plan import DEMO, Plan, Setting
from benchmarks.scenarios.outcomes.ranking import Response
from benchmarks.scenarios.peers.in_process import Side, load, open_side, verify
from fly.messages import Open, Role
from fly.presets import DEFAULT_PRESET, EXACT, PRESETS
from fly.request import SamplingParams
from fly.speculation import Speculation
from fly.types import Mode, ResponseLimits
from router.text.tokenizer import Tokenizer
from services.drafter.outcomes import Outcome, Round, Row, make_row
from services.engine.base import Job
from services.engine.forward.torch_runner import TorchRunner
from services.engine.sequence import EngineSequence

_MOST_READ, _MOST_KEPT = 64, 9
"""Most likely tokens of a position that are read, and those with the best scores that are kept."""
_SEQUENCES = 16


@dataclass(frozen=True, slots=True)
class Pair:
    """A loaded pair and its prompts."""

    name: str
    target: TorchRunner
    drafter: TorchRunner
    prompts: Prompts
    ending_ids: frozenset[int]
    max_new_tokens: int

    def record(self, setting: Setting, number: int) -> Response:
        """Decode one prompt; its number is the seed."""
        rule = PRESETS[DEFAULT_PRESET] if setting.mode is Mode.FLY else EXACT
        prompt, room = self.prompts[number], self.max_new_tokens + 2 * setting.draft_length
        sampling = SamplingParams(
            temperature=setting.temperature, seed=number, stop_token_ids=tuple(self.ending_ids)
        )
        openings = [
            Open("outcomes", len(prompt), sampling, entropy=rule.entropy, num_logprobs=num_logprobs)
            for num_logprobs in (None, _MOST_READ)
        ]
        with ExitStack() as stack:
            target, drafter = (
                stack.enter_context(open_side(runner, len(prompt) + room, opening))
                for runner, opening in zip((self.target, self.drafter), openings, strict=True)
            )
            limits = ResponseLimits(self.max_new_tokens, self.ending_ids)
            recorder = _Recorder(target, drafter, Speculation(prompt, rule, limits), self.ending_ids)
            return Response(sampling.seed or 0, *recorder.record(setting.draft_length))


@dataclass(slots=True)
class _Recorder:
    """Decodes one response.

    Attributes:
        rows: The drafter's latest scores by position.
    """

    target: Side
    drafter: Side
    speculation: Speculation
    ending_ids: frozenset[int]
    rows: dict[int, Row] = field(default_factory=dict)

    def record(self, draft_length: int) -> tuple[int, tuple[Round, ...]]:
        """Return the number of tokens of the rounds with a draft, and these rounds."""
        rounds, num_tokens, speculation = list[Round](), 0, self.speculation
        while speculation.finish_reason is None:
            decided = speculation.decided_length
            if max_drafts := min(draft_length, speculation.max_drafts):
                rounds.append(self._round(max_drafts))
                num_tokens += speculation.decided_length - decided
            else:
                verify(self.target, speculation, ())
        return num_tokens, tuple(rounds)

    def _round(self, max_drafts: int) -> Round:
        """Draft, verify and decide; return the round with the start of the next one."""
        speculation, drafter = self.speculation, self.drafter
        start, decided = len(speculation.sequence), speculation.decided_length
        drafter.update(speculation)
        rows = tuple(drafter.run(drafted_rows(drafter.sequence, max_drafts, self.ending_ids)))
        drafts = tuple(drafter.sequence.tokens.ids[start:])
        drafter.record_draft(drafts)
        self.rows |= dict(enumerate(rows, start))
        before = [*speculation.sequence.ids, *drafts]
        verify(self.target, speculation, drafts)
        outcome = None
        if speculation.finish_reason is None:
            *kept, token = speculation.sequence.ids
            assert kept == before[: len(kept)], "a round keeps a prefix and adds one token"
            outcome = Outcome(len(kept) - start, token)
        return Round(
            num_drafts=len(drafts),
            rows=rows,
            num_open=start - decided,
            open_row=self.rows.get(decided) if decided < start else None,
            outcome=outcome,
        )


def drafted_rows(sequence: EngineSequence, max_tokens: int, ending_ids: frozenset[int]) -> Job[list[Row]]:
    """Draft; return the row of every draft token, and of the token after them unless the draft has ended."""
    rows = list[Row]()
    while True:
        scores = yield from sequence.score(is_proposing=True)
        choice, ranked = scores.choices[0], scores.logprobs[0].top
        rows.append(make_row(choice, ranked, sequence.opening.sampling, len(sequence), _MOST_KEPT))
        if len(rows) > max_tokens:
            return rows
        sequence.extend((choice,))
        if choice in ending_ids:
            return rows


def load_pair(name: str, plan: Plan) -> Pair:
    """Load a pair; the aligned pair is built if it does not exist yet."""
    target, drafter = _folders(name)
    ending_ids = frozenset(Tokenizer.load(target).eos_ids)
    prompts = demo_prompts(plan.prompts)
    if name != DEMO:
        prompts = random_prompts(range(RECIPE.vocab_size), plan.aligned_prompts)
    return Pair(
        name,
        load(target, Role.TARGET, "bfloat16", _SEQUENCES),
        load(drafter, Role.DRAFTER, "float32", _SEQUENCES),
        prompts,
        ending_ids,
        plan.max_new_tokens,
    )


def _folders(name: str) -> Iterator[Path]:
    if name == DEMO:
        return iter((DEMO_MODELS / "target", DEMO_MODELS / "drafter"))
    from benchmarks.aligned_pair.folders import ensure_pair

    folders = ensure_pair(RECIPE, BUILD / "aligned-endless")
    return iter((folders.target, folders.drafter))
