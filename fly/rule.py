"""The decision of one round: which drafts are kept, which mismatch is rejected and why."""

import math
from collections.abc import Sequence

from fly.types import (
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
    """Decides one round: the longest acceptable prefix, then the target's own token (FLy, arXiv 2511.22972).

    Args:
        rule: Its parameters.
        state: What an earlier round left open.
        evidence: The target's word on the drafts that follow `state.provisional`.
        limits: Where the response must end. Cutting the decided tokens there is the caller's part
            (`fly.speculation`); the rule needs to know which windows can never be filled.

    Returns:
        The next state, and what to emit and keep.
    """
    positions = state.provisional + evidence.positions
    for index, position in enumerate(positions):
        if position.is_match:
            continue
        rejection = _rejection(rule, positions, index, state.num_decided, len(evidence.positions), limits)
        is_tail = rejection is RejectionReason.TAIL
        if is_tail and _can_carry(rule, positions[index:], evidence, limits, state, index):
            return _carried(state, positions, index, evidence)
        if rejection is not None:
            return _rejected(state, positions[:index], position, rejection)
    return _accepted(state, positions, evidence)


def count_matches(drafts: Sequence[int], choices: Sequence[int]) -> int:
    """Length of the longest prefix of `drafts` that equals the scorer's choices: exact acceptance."""
    for length, (draft, choice) in enumerate(zip(drafts, choices, strict=False)):
        if draft != choice:
            return length
    return min(len(drafts), len(choices))


def tail_length(rule: FlyRule, num_drafts: int) -> int:
    """Of so many drafts, the last ones where too few follow for a mismatch to be kept."""
    if math.isinf(rule.threshold):
        return 0
    _, needed = _spans(rule, num_drafts)
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
    """Why the mismatch at `index` is not kept; None keeps it."""
    mismatch = positions[index]
    if math.isinf(rule.threshold):
        return RejectionReason.EXACT
    if not mismatch.entropy >= rule.threshold:  # so that NaN is rejected
        return RejectionReason.GATE
    if num_decided + index < rule.strict_prefix_tokens or _is_guarded(rule, mismatch, limits.ending_ids):
        return RejectionReason.GUARD
    window, min_following = _spans(rule, num_drafts)
    following, meets_end = _following(rule, positions[index + 1 :], limits.ending_ids)
    if not all(position.is_match for position in following[:window]):
        return RejectionReason.WINDOW
    if len(following) >= min_following:
        return None
    return RejectionReason.GUARD if meets_end else RejectionReason.TAIL


def _spans(rule: FlyRule, num_drafts: int) -> tuple[int, int]:
    """`window` and `min_following` for a draft of this length."""
    if not rule.shrinks:
        return rule.window, rule.min_following
    longest = max(1, num_drafts - 1)
    return min(rule.window, longest), min(rule.min_following, longest)


def _is_guarded(rule: FlyRule, mismatch: Position, ending_ids: frozenset[int]) -> bool:
    stops = rule.guard_stops and (mismatch.token in ending_ids or mismatch.choice in ending_ids)
    return stops or (rule.guard_excluded and mismatch.excluded)


def _following(
    rule: FlyRule, positions: tuple[Position, ...], ending_ids: frozenset[int]
) -> tuple[list[Position], bool]:
    """The draft positions that a window may count, and whether an ending token cuts them short."""
    following: list[Position] = []
    for position in positions:
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
    """Whether an open mismatch, `tail[0]`, may wait for the next draft."""
    if rule.tail is not TailPolicy.CARRY or not evidence.positions:
        return False
    matches = sum(not position.is_bonus for position in tail[1:])
    # What would be decided with the window: all up to the bonus, the missing matches, and one choice more.
    length = state.num_decided + index + len(tail) + 1 + (rule.window - matches) + 1
    fits = length <= limits.max_new_tokens
    return matches >= rule.carry_after and fits and evidence.extra_choice not in limits.ending_ids


def _verdict(position: Position) -> Verdict:
    if position.is_bonus:
        return Verdict.BONUS
    return Verdict.EXACT if position.is_match else Verdict.RESCUED


def _kept(positions: Sequence[Position]) -> tuple[Token, ...]:
    return tuple([Token(p.token, _verdict(p), p.choice, p.entropy) for p in positions])


def _after(state: RuleState, decided: tuple[Token, ...]) -> RuleState:
    return RuleState(state.num_decided + len(decided))


def _rejected(
    state: RuleState, kept: Sequence[Position], mismatch: Position, rejection: RejectionReason
) -> tuple[RuleState, Decision]:
    correction = Token(mismatch.choice, Verdict.CORRECTED, mismatch.choice, mismatch.entropy)
    decided = (*_kept(kept), correction)
    return _after(state, decided), Decision(decided, rejection=rejection)


def _carried(
    state: RuleState, positions: tuple[Position, ...], index: int, evidence: Evidence
) -> tuple[RuleState, Decision]:
    choice = evidence.extra_choice
    bonus = Position(choice, choice, evidence.extra_entropy, is_bonus=True)
    provisional = (*positions[index:], bonus)
    decided = _kept(positions[:index])
    next_state = RuleState(state.num_decided + len(decided), provisional)
    return next_state, Decision(decided, tuple(position.token for position in provisional))


def _accepted(
    state: RuleState, positions: tuple[Position, ...], evidence: Evidence
) -> tuple[RuleState, Decision]:
    verdict = Verdict.BONUS if positions else Verdict.PLAIN
    extra = Token(evidence.extra_choice, verdict, evidence.extra_choice, evidence.extra_entropy)
    decided = (*_kept(positions), extra)
    return _after(state, decided), Decision(decided)
