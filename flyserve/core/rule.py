"""The acceptance rule (FLy, arXiv 2511.22972, section 3): decide which tokens of a draft are accepted.

A draft token that equals the target's choice is accepted. One that differs, a mismatch, passes two tests:

1. Entropy gate. The target was uncertain at that position: its entropy reaches `threshold`. A mismatch where
   the target was sure is a real error and is rejected.
2. Deferred window. The target agrees with each of the next `window` draft tokens, given the mismatch: it
   continues in the same direction. If it disagrees within the window, the mismatch is rejected.

The first rejected mismatch ends the round; the target's choice replaces it. All functions are pure.
"""

import math
from collections.abc import Sequence

from flyserve.core.types import (
    Decision,
    Evidence,
    FlyRule,
    Position,
    RejectionReason,
    ResponseLimits,
    RuleState,
    TailPolicy,
    Token,
    Verdict,
)


def decide(
    rule: FlyRule, state: RuleState, evidence: Evidence, limits: ResponseLimits
) -> tuple[RuleState, Decision]:
    """Decide one round: accept the longest acceptable prefix of the draft, then add the target's own token.

    Args:
        rule: The parameters of the rule.
        state: The decided length, and the provisional tokens of a window that an earlier round carried.
        evidence: The target's choices and entropies for the drafts that follow `state.provisional`.
        limits: The token budget and the ending tokens. The caller cuts the decided tokens there
            (`flyserve.core.speculation`); the rule needs the limits to know which windows cannot be filled.

    Returns:
        The next state, and the decision: the tokens to emit and the provisional tokens to keep.
    """
    positions = state.provisional + evidence.positions
    for index, position in enumerate(positions):
        # Accept a draft token that equals the target's choice.
        if position.is_match:
            continue
        rejection = _rejection(rule, positions, index, state.num_decided, len(evidence.positions), limits)
        # The draft ended before the window: the next draft may fill it.
        is_tail = rejection is RejectionReason.TAIL
        if is_tail and _can_carry(rule, positions[index:], evidence, limits, state, index):
            return _carried(state, positions, index, evidence)
        # Reject: the target's choice replaces the mismatch, and all drafts after it are dropped.
        if rejection is not None:
            return _rejected(state, positions[:index], position, rejection)
        # Rescue the mismatch: the target was uncertain here and agrees with what follows.
    # The whole draft is accepted: the target's choice after the last draft token is the bonus.
    return _accepted(state, positions, evidence)


def tail_length(rule: FlyRule, num_drafts: int) -> int:
    """Return the number of last tokens of a draft that cannot be rescued: too few tokens follow them."""
    if math.isinf(rule.threshold):
        return 0
    _, needed = _window_sizes(rule, num_drafts)
    if rule.tail is TailPolicy.CARRY:
        needed = min(needed, rule.carry_after)
    return min(num_drafts, needed)


def _rejection(
    rule: FlyRule,
    positions: tuple[Position, ...],
    index: int,
    num_decided: int,
    num_drafts: int,
    limits: ResponseLimits,
) -> RejectionReason | None:
    """Return the reason to reject the mismatch at `index`; None rescues it."""
    mismatch = positions[index]
    # Exact mode accepts no mismatch.
    if math.isinf(rule.threshold):
        return RejectionReason.EXACT
    # Entropy gate: reject where the target was sure. The comparison is negated so that NaN is rejected.
    if not mismatch.entropy >= rule.threshold:
        return RejectionReason.GATE
    # Guards: the first tokens of the response, stop tokens, tokens that the sampling filters exclude, tokens
    # that the target finds too unlikely, and parts of the response that are decoded exactly.
    if num_decided + index < rule.strict_prefix_tokens or _is_guarded(rule, mismatch, limits.ending_ids):
        return RejectionReason.GUARD
    # Deferred window: the next `window` draft tokens must all be matches.
    window, min_following = _window_sizes(rule, num_drafts)
    following, meets_end = _following(rule, positions[index + 1 :], limits.ending_ids)
    if not all(position.is_match for position in following[:window]):
        return RejectionReason.WINDOW
    if len(following) >= min_following:
        return None
    # The window is not full: an ending token closes it for good, the end of the draft only for this round.
    return RejectionReason.GUARD if meets_end else RejectionReason.TAIL


def _window_sizes(rule: FlyRule, num_drafts: int) -> tuple[int, int]:
    """Return `window` and `min_following` for a draft of this length."""
    if not rule.shrinks:
        return rule.window, rule.min_following
    longest = max(1, num_drafts - 1)
    return min(rule.window, longest), min(rule.min_following, longest)


def _is_guarded(rule: FlyRule, mismatch: Position, ending_ids: frozenset[int]) -> bool:
    most = rule.max_logprob_gap
    if mismatch.is_strict or (most is not None and not mismatch.logprob_gap <= most):
        return True
    stops = rule.guard_stops and (mismatch.token in ending_ids or mismatch.choice in ending_ids)
    return stops or (rule.guard_excluded and mismatch.excluded)


def _following(
    rule: FlyRule, positions: tuple[Position, ...], ending_ids: frozenset[int]
) -> tuple[list[Position], bool]:
    """Return the draft positions that a window may count, and whether an ending token cuts them short."""
    following: list[Position] = []
    for position in positions:
        # A bonus is the target's own token: it says nothing about the draft.
        if not position.is_bonus:
            following.append(position)
        if rule.guard_stops and position.token in ending_ids:
            return following, True
    return following, False


def _can_carry(
    rule: FlyRule,
    tail: tuple[Position, ...],
    evidence: Evidence,
    limits: ResponseLimits,
    state: RuleState,
    index: int,
) -> bool:
    """Return True if the open mismatch `tail[0]` may wait for the next draft to fill its window."""
    if rule.tail is not TailPolicy.CARRY or not evidence.positions:
        return False
    matches = sum(not position.is_bonus for position in tail[1:])
    # Response length once the window is full: all tokens up to the bonus, the missing matches, one choice.
    length = state.num_decided + index + len(tail) + 1 + (rule.window - matches) + 1
    fits = length <= limits.max_new_tokens
    return matches >= rule.carry_after and fits and evidence.extra_choice not in limits.ending_ids


def _verdict(position: Position) -> Verdict:
    if position.is_bonus:
        return Verdict.BONUS
    return Verdict.EXACT if position.is_match else Verdict.RESCUED


def _decided(positions: Sequence[Position]) -> tuple[Token, ...]:
    return tuple([Token(p.token, _verdict(p), p.choice, p.entropy) for p in positions])


def _rejected(
    state: RuleState, accepted: Sequence[Position], mismatch: Position, rejection: RejectionReason
) -> tuple[RuleState, Decision]:
    correction = Token(mismatch.choice, Verdict.CORRECTED, mismatch.choice, mismatch.entropy)
    decided = (*_decided(accepted), correction)
    return RuleState(state.num_decided + len(decided)), Decision(decided, rejection=rejection)


def _carried(
    state: RuleState, positions: tuple[Position, ...], index: int, evidence: Evidence
) -> tuple[RuleState, Decision]:
    choice = evidence.extra_choice
    bonus = Position(choice, choice, evidence.extra_entropy, is_bonus=True)
    provisional = (*positions[index:], bonus)
    decided = _decided(positions[:index])
    next_state = RuleState(state.num_decided + len(decided), provisional)
    return next_state, Decision(decided, tuple(position.token for position in provisional))


def _accepted(
    state: RuleState, positions: tuple[Position, ...], evidence: Evidence
) -> tuple[RuleState, Decision]:
    verdict = Verdict.BONUS if positions else Verdict.PLAIN
    extra = Token(evidence.extra_choice, verdict, evidence.extra_choice, evidence.extra_entropy)
    decided = (*_decided(positions), extra)
    return RuleState(state.num_decided + len(decided)), Decision(decided)
