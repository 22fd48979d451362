"""The benefit of drafts that are looked up: when one is requested, and which are worth a verification. Pure.

Such a draft costs no forward of a drafter. But its request is a message, each of its tokens is a row of the
target's forward, and it ends an extension, in which the target decodes many tokens with one message. So a
look-up pays by measurement: its accepted tokens must save more seconds of extensions than they cost.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fly.clock import Clock
from fly.ewma import RecentMean
from fly.lookup_costs import REFERENCE_TOKENS, LookupCosts
from fly.round_record import RoundRecord
from fly.sequence import common_length

_OWN_MEMORY_DRAFTS = 16.0
_POOL_WEIGHT = 8.0
"""Drafts of the response's own that the pool counts for."""
_TRIAL_DRAFTS = 4
"""Drafts of a size that are verified before their cost is judged."""
_EXPLORE_EVERY = 32
"""Of the drafts of a size that do not pay, every 32nd is verified: their cost may have changed."""
_COST_MARGIN = 1.1
"""Factor of measured costs: in doubt the target decodes alone, and each round costs the router some time."""
_LONGEST_PAUSE = 64
_LOST_SHARE = 0.02
"""Share of the time that requests may lose while they cost more than they save."""


@dataclass(slots=True)
class _Window:
    """The part of a response that a request accounts for, without long steps.

    Attributes:
        after: Accepted tokens of the draft of the request before; 0 if it was not used.
        spent_s: Seconds that it took.
        num_tokens: Tokens of the response in it.
    """

    after: int
    spent_s: float
    num_tokens: int = 0


class LookupBenefit:
    """Decides for one response when a draft is requested from a look-up drafter, and whether it is verified.

    After a draft that is used, the next one is requested at once. After one that is empty, or does not pay,
    it is requested one token later, then two, four, up to 64, if the target decodes several tokens in a step:
    text that never repeats costs few requests. While requests cost more than they save, they are so rare that
    they lose a fiftieth of the time. What they save depends on the draft before: after one of which many
    tokens were accepted, the text goes on as it did before.

    What a request saves is measured whole: up to the end of its verification, or of the steps before the next
    request, the tokens count what they take without requests, less the seconds that passed. So short steps
    between requests, which are slower than long ones, count too.

    A draft that is not used is still compared with what the target decodes instead, so a response whose
    drafts have become good is noticed without the cost of trying them.
    """

    def __init__(self, costs: LookupCosts, tokens_per_step: Callable[[float], int], clock: Clock) -> None:
        """Begin a response.

        `tokens_per_step` returns how many tokens the target decodes in a step without a draft if each takes
        the given seconds.
        """
        self._costs = costs
        self._tokens_per_step = tokens_per_step
        self._clock = clock
        self._answered_at: float | None = None
        self._answer_s = 0.0
        self._is_pending = False
        self._pause = 0
        self._tokens_left = 0
        self._window: _Window | None = None
        self._num_accepted = 0
        self._ignored: tuple[int, ...] = ()
        self._own_gain_s = RecentMean(0.0, _OWN_MEMORY_DRAFTS)
        self._own: defaultdict[int, RecentMean] = defaultdict(lambda: RecentMean(0.0, _OWN_MEMORY_DRAFTS))

    @property
    def tokens_until_request(self) -> int:
        """Tokens that the target decodes before the next draft is requested; 0 if one is due."""
        return self._tokens_left

    def record(self, round: RoundRecord) -> None:
        """Record a round; after the last one also what the last request has saved."""
        self._record_pause(round.started_s)
        if not round.is_prefill and round.answer is not None:
            if round.num_decoded:
                self.record_extension(round.answer.choices, round.forward_s, round.answer_s)
            else:
                self.record_verification(len(round.drafts), round.answer_s)
            self._answered_at, self._answer_s = round.answered_s, round.answer_s
        if round.drafts and not round.is_free:
            self.record_round(len(round.drafts), round.num_accepted)
        if round.is_last:
            self.end()

    def _record_pause(self, started_s: float) -> None:
        """Record the time since the last answer; a client that reads slowly counts little."""
        if self._answered_at is not None:
            self._costs.record_pause(min(started_s - self._answered_at, self._answer_s))
            self._answered_at = None

    def begin_round(self) -> None:
        """Record the time since the last answer."""
        self._record_pause(self._clock.now())

    def accept(self, draft: tuple[int, ...], wait_s: float) -> bool:
        """Return True if a draft should be verified; the round has waited `wait_s` for it."""
        self.end()
        self._window, self._ignored = _Window(self._num_accepted, wait_s), ()
        self._is_pending = bool(draft) and self._pays(len(draft))
        if self._is_pending:
            self._pause = 0
        else:
            self._ignored, self._num_accepted = draft, 0
            if self._tokens_per_step(self._costs.forward_s) > 1:
                self._pause = min(_LONGEST_PAUSE, max(1, 2 * self._pause))
            self._plan_request()
        return self._is_pending

    def record_verification(self, num_drafts: int, spent_s: float) -> None:
        """Record the seconds of a verification, if its draft was looked up."""
        self._answered_at, self._answer_s = self._clock.now(), spent_s
        if self._is_pending and self._window:
            self._window.spent_s += _COST_MARGIN * (spent_s + self._costs.between_s)
            self._costs.record_verification(num_drafts, spent_s)

    def record_round(self, num_drafts: int, num_accepted: int) -> None:
        """Record the result of that verification."""
        if self._is_pending and self._window:
            self._is_pending = False
            self._window.num_tokens += 1 + num_accepted
            self._num_accepted = num_accepted
            self._record_matches(num_drafts, num_accepted)
            self.end()
            self._plan_request()

    def record_extension(self, choices: Sequence[int], forward_s: float, spent_s: float) -> None:
        """Record a step without a draft; it also shows what a draft that was not used was worth."""
        self._answered_at, self._answer_s = self._clock.now(), spent_s
        costs, num_tokens = self._costs, len(choices)
        usual = self._tokens_per_step(costs.forward_s or forward_s / num_tokens)
        is_long = num_tokens >= min(REFERENCE_TOKENS, usual)
        costs.record_step(num_tokens, forward_s, spent_s, is_long)
        self._tokens_left = max(0, self._tokens_left - num_tokens)
        if self._window and not is_long:
            self._window.num_tokens += num_tokens
            self._window.spent_s += spent_s + costs.between_s
        elif self._window and usual > 1:
            self._window.spent_s += costs.message_s  # the request has cut a longer step in two
        draft, self._ignored = self._ignored, ()
        if draft:
            self._record_ignored(draft, choices)

    def end(self) -> None:
        """Record what the last request has saved: after its verification, before the next one, at the end."""
        if self._window:
            self._record_gain(self._window.num_tokens * self._token_s() - self._window.spent_s)

    def _token_s(self) -> float:
        """Return the seconds of a token that is decoded without a draft."""
        costs = self._costs
        return costs.forward_s + costs.message_s / self._tokens_per_step(costs.forward_s)

    def _pays(self, num_drafts: int) -> bool:
        costs, size = self._costs, self._costs.of_size(num_drafts)
        if size.num_verified < _TRIAL_DRAFTS or not costs.forward_s:
            return True
        size.num_ignored += 1
        accepted = blend(size.accepted, self._own[num_drafts.bit_length()])
        return size.num_ignored >= _EXPLORE_EVERY or self._saved_s(num_drafts, accepted) > 0

    def _saved_s(self, num_drafts: int, num_accepted: float) -> float:
        """Return the seconds that the verification of a draft saves if this many tokens are accepted."""
        costs, steps = self._costs, self._costs.of_size(num_drafts).steps.value
        spent_s = _COST_MARGIN * steps * (costs.forward_s + costs.message_s)
        return (1 + num_accepted) * self._token_s() - spent_s

    def _record_ignored(self, draft: Sequence[int], choices: Sequence[int]) -> None:
        """Record what a draft that was not used would have saved; if it would have, request the next one.

        NOTE: a step that ends before the draft says nothing against the rest of it.
        """
        num_common = common_length(draft, choices)
        num_matched = len(draft) if num_common == len(choices) else num_common
        self._record_matches(len(draft), num_matched)
        if (saved_s := self._saved_s(len(draft), num_matched)) > 0:
            self._pause, self._num_accepted = 0, num_matched
            self._record_gain(saved_s)
            self._plan_request()

    def _record_gain(self, gain_s: float) -> None:
        """Record the seconds that the last request has saved; negative if it has cost more."""
        window, self._window = self._window, None
        if window and self._costs.forward_s:
            self._costs.record_request(window.after, gain_s, window.spent_s)
            self._own_gain_s.add(gain_s)

    def _plan_request(self) -> None:
        """Set the number of tokens before the next request."""
        costs = self._costs
        if not costs.forward_s:
            self._tokens_left = 1  # a first token without a draft, to compare
            return
        lost_s = max(0.0, -blend(costs.gain_after(self._num_accepted), self._own_gain_s))
        self._tokens_left = max(self._pause, int(lost_s / (_LOST_SHARE * self._token_s())))
        if self._tokens_per_step(costs.forward_s) > 1 and costs.takes_reference():
            self._tokens_left = max(self._tokens_left, REFERENCE_TOKENS)

    def _record_matches(self, num_drafts: int, num_accepted: int) -> None:
        self._costs.of_size(num_drafts).accepted.add(num_accepted)
        self._own[num_drafts.bit_length()].add(num_accepted)


def blend(pool: RecentMean, own: RecentMean) -> float:
    """Return a response's own mean, to which the pool of all responses is added as a few values."""
    weight = min(_POOL_WEIGHT, pool.weight)
    return (weight * pool.value + own.weight * own.value) / max(weight + own.weight, 1e-9)
