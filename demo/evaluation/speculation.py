"""An offline estimate of the gain of speculation: real drafts and verdicts, without an engine or a clock."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from transformers import LlamaForCausalLM

from demo.evaluation.accuracy import BATCH, MAX_NEW_TOKENS, continue_greedily, last_logits, pad_left
from demo.evaluation.agreement import top3_entropy
from demo.progress import tqdm
from flyserve.core.rule import decide
from flyserve.core.types import (
    Evidence,
    FlyRule,
    Position,
    RejectionReason,
    ResponseLimits,
    RuleState,
    Verdict,
)


@dataclass(slots=True)
class Outcome:
    """The results of a set of prompts.

    Attributes:
        responses: Token ids per prompt, up to and with the end of text.
        rounds: Drafts verified, over all prompts.
        verdicts: Tokens by verdict.
        rejections: First mismatches by the reason of their rejection.
    """

    responses: list[list[int]]
    rounds: int = 0
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    rejections: Counter[RejectionReason] = field(default_factory=Counter)

    @property
    def tau(self) -> float:
        """Tokens per round."""
        return sum(map(len, self.responses)) / self.rounds


class Simulation:
    """Speculates with a fixed draft length and windows that end with their draft."""

    def __init__(
        self, target: LlamaForCausalLM, drafter: LlamaForCausalLM, end: int, rule: FlyRule, num_drafts: int
    ) -> None:
        self._target = target
        self._drafter = drafter
        self._end = end
        self._rule = rule
        self._num_drafts = num_drafts
        self._limits = ResponseLimits(MAX_NEW_TOKENS, frozenset({end}))

    def run(self, prompts: Sequence[list[int]], label: str) -> Outcome:
        """Respond to every prompt."""
        outcome = Outcome([[] for _ in prompts])
        with tqdm(total=len(prompts), desc=label, leave=False) as bar:
            for start in range(0, len(prompts), BATCH):
                active = list(range(start, min(start + BATCH, len(prompts))))
                while active:
                    self._round(prompts, outcome, active)
                    unfinished = [i for i in active if not self._is_finished(outcome.responses[i])]
                    bar.update(len(active) - len(unfinished))
                    active = unfinished
        return outcome

    def _round(self, prompts: Sequence[list[int]], outcome: Outcome, active: list[int]) -> None:
        known = [[*prompts[i], *outcome.responses[i]] for i in active]
        drafts = continue_greedily(self._drafter, known, self._end, self._num_drafts, end=None)
        for i, evidence in zip(active, self._verify(known, drafts), strict=True):
            self._decide(outcome, i, evidence)

    def _verify(self, known: list[list[int]], drafts: list[list[int]]) -> list[Evidence]:
        tokens, mask = pad_left([[*k, *d] for k, d in zip(known, drafts, strict=True)], self._end)
        logits = last_logits(self._target, tokens, mask, self._num_drafts + 1)
        choices, entropies = logits.argmax(-1).tolist(), top3_entropy(logits).tolist()
        return [
            Evidence(tuple(map(Position, draft, choice, entropy)), choice[-1], entropy[-1])
            for draft, choice, entropy in zip(drafts, choices, entropies, strict=True)
        ]

    def _decide(self, outcome: Outcome, i: int, evidence: Evidence) -> None:
        response = outcome.responses[i]
        _, decision = decide(self._rule, RuleState(len(response)), evidence, self._limits)
        outcome.rounds += 1
        if decision.rejection is not None:
            outcome.rejections[decision.rejection] += 1
        for decided in decision.decided:
            response.append(decided.id)
            outcome.verdicts[decided.verdict] += 1
            if self._is_finished(response):
                return

    def _is_finished(self, response: list[int]) -> bool:
        return len(response) >= MAX_NEW_TOKENS or response[-1:] == [self._end]
