"""No preset leaves the grammar: with excluded drafts guarded, every decided token keeps it alive."""

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from flyserve.core.presets import PRESETS
from flyserve.core.speculation import Speculation
from flyserve.core.types import Evidence, FinishReason, FlyRule, Position, ResponseLimits, TailPolicy, Verdict
from services.common.grammars.follower import is_allowed
from tests.support.grammars import END, allowed, follower

VOCAB = 640
PROMPT = [3, 4]
LAX = FlyRule(threshold=0.0, window=1, min_following=1)
RULES = [*PRESETS.values(), *(replace(LAX, tail=tail) for tail in TailPolicy)]


def evidence(draw: random.Random, response: list[int], num_drafts: int) -> Evidence:
    """Return what a target that masks answers to a draft of valid and invalid tokens; any entropies."""
    drafting, drafts = follower(), list[int]()
    for _ in range(num_drafts):
        right = drafting.move([*response, *drafts]) and allowed(drafting.mask([END]))
        drafts.append(draw.choice(right) if right and draw.random() < 0.9 else draw.randrange(VOCAB))
    masks = list(follower().masks(response, drafts, [END]))
    positions = list[Position]()
    for index, draft in enumerate(drafts):
        mask = masks[index] if index < len(masks) else None
        is_excluded = mask is not None and not is_allowed(mask, draft)
        choices = list(range(VOCAB)) if mask is None else allowed(mask)
        agrees = not is_excluded and draw.random() < 0.8
        choice = draft if agrees else draw.choice(choices)
        positions.append(Position(draft, choice, draw.random() * 3, is_excluded))
    last = allowed(masks[-1]) if len(masks) == len(drafts) + 1 else list(range(VOCAB))
    return Evidence(tuple(positions), draw.choice(last), draw.random() * 3)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(RULES), st.randoms(use_true_random=False), st.integers(0, 15))
def test_every_decided_token_is_one_of_the_grammar(rule: FlyRule, draw: random.Random, most: int) -> None:
    limits = ResponseLimits(60, frozenset([END]))
    speculation = Speculation(PROMPT, replace(rule, guard_excluded=True), limits)
    while speculation.finish_reason is None:
        response = list(speculation.sequence.ids[len(PROMPT) :])
        num_drafts = min(most, speculation.max_drafts)
        decision = speculation.apply(evidence(draw, response, max(0, num_drafts)))
        decided = list(speculation.sequence.ids[len(PROMPT) :])
        is_ended = speculation.finish_reason is FinishReason.STOP_TOKEN
        fresh = follower()
        assert fresh.move(decided[:-1] if is_ended else decided)
        if is_ended:
            assert decided[-1] == END and is_allowed(fresh.mask([END]), END)
        assert not any(token.id == END for token in decision.decided[:-1])


def test_without_the_guard_a_rule_can_leave_the_grammar() -> None:
    draw, left = random.Random(5), False
    rule = replace(LAX, guard_excluded=False)
    for _ in range(60):
        found = evidence(draw, [], 6)
        speculation = Speculation(PROMPT, rule, ResponseLimits(60, frozenset([END])))
        decision = speculation.apply(found)
        is_rescued = any(token.verdict is Verdict.RESCUED for token in decision.decided)
        ids = [token.id for token in decision.decided if token.id != END]
        left |= is_rescued and not follower().move(ids)
    assert left
