"""The benefit of drafts that are looked up: when one is requested, and which are worth a verification. Pure.

Such a draft costs no forward of a drafter. But its request is a message, each of its tokens is a row of the
target's forward, and it ends an extension, in which the target decodes many tokens with one message. So a
look-up pays by measurement: its accepted tokens must save more seconds of extensions than they cost.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flyserve.core.ewma import RecentMean
from flyserve.core.round_record import RoundRecord
from flyserve.core.sequence import common_length

_MEMORY_STEPS = 16.0
_MEMORY_TOKENS = 64.0
_MEMORY_DRAFTS = 64.0
_OWN_MEMORY_DRAFTS = 16.0
_POOL_WEIGHT = 8.0
"""Drafts of the response's own that the pool counts for."""
_TRIAL_DRAFTS = 4
"""Drafts of a size that are verified before their cost is judged."""
_EXPLORE_EVERY = 32
"""Every 32nd draft of a size that does not pay is verified: its cost may have changed."""
_COST_MARGIN = 1.1
"""Factor of measured costs: in doubt the target decodes alone, and each round costs the router some time."""
_LONGEST_PAUSE = 64
_LOST_SHARE = 0.02
"""Share of the time that requests may lose while they cost more than they save."""
_REFERENCE_TOKENS = 32
"""Tokens decoded without drafts now and then while drafts pay, to know what decoding without them takes."""
_REFERENCE_SHARE = 0.01
"""Share of the time that these may take."""


@dataclass(slots=True)
class _Size:
    """Drafts of about the same number of tokens, of all responses.

    Attributes:
        accepted: Tokens of such a draft that are accepted.
        steps: Seconds of its verification, by those of a step that decodes one token.
        num_verified: Such drafts that were verified.
        num_ignored: Such drafts since the last one that was verified.
    """

    accepted: RecentMean = field(default_factory=lambda: RecentMean(0.0, _MEMORY_DRAFTS))
    steps: RecentMean = field(default_factory=lambda: RecentMean(1.0, _MEMORY_DRAFTS))
    num_verified: int = 0
    num_ignored: int = 0


class LookupCosts:
    """Times and gains that the responses at one target share.

    Attributes:
        sizes: Drafts by the bit length of their number of tokens.
        gain_s: Seconds that a request has saved, by the bit length of the accepted tokens of the draft
            before it; negative if it has cost more.
        message_s: Seconds of a round without a draft beside its forwards.
        between_s: Seconds between an answer of the target and the next round.
    """

    def __init__(self) -> None:
        self.sizes: defaultdict[int, _Size] = defaultdict(_Size)
        self.gain_s: defaultdict[int, RecentMean] = defaultdict(lambda: RecentMean(0.0, _MEMORY_DRAFTS))
        self.message_s = RecentMean(0.0, _MEMORY_STEPS)
        self.between_s = RecentMean(0.0, _MEMORY_STEPS)
        self._forward_s = RecentMean(0.0, _MEMORY_TOKENS)
        self._since_reference_s = 0.0
        self._has_reference = False

    @property
    def forward_s(self) -> float:
        """Seconds of a forward of one token; 0 if none was measured."""
        return self._forward_s.value

    @property
    def is_reference_due(self) -> bool:
        """True if it is time to decode some tokens without drafts, to compare."""
        if not self._has_reference:
            return True
        return _REFERENCE_SHARE * self._since_reference_s > _REFERENCE_TOKENS * self.forward_s

    def record_step(self, num_tokens: int, forward_s: float, spent_s: float, usual_tokens: int) -> bool:
        """Record a step without a draft; return True if it was long: of as many tokens as usual.

        NOTE: forwards of short steps are slower than those of long ones, so that they count only until there
        is a long one.
        """
        is_long = num_tokens >= min(_REFERENCE_TOKENS, usual_tokens)
        if is_long and not self._has_reference:
            self._forward_s, self._has_reference = RecentMean(0.0, _MEMORY_TOKENS), True
        if is_long or not self._has_reference:
            self._forward_s.add(forward_s / num_tokens, num_tokens)
            self._since_reference_s = 0.0
        self.message_s.add(max(0.0, spent_s + self.between_s.value - num_tokens * self.forward_s))
        return is_long

    def record_verification(self, num_drafts: int, spent_s: float) -> None:
        """Record the seconds of a verification of this many drafts, with those after the answer before it."""
        size = self.sizes[num_drafts.bit_length()]
        size.num_verified, size.num_ignored = size.num_verified + 1, 0
        self._since_reference_s += spent_s
        if self.forward_s:
            size.steps.add(spent_s / (self.forward_s + self.message_s.value))


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

    Attributes:
        tokens_until_request: Tokens that the target decodes before the next draft is requested; 0 if one is
            due.
    """

    def __init__(self, costs: LookupCosts, tokens_per_step: Callable[[float], int]) -> None:
        """Begin a response.

        `tokens_per_step` returns how many tokens the target decodes in a step without a draft if each takes
        the given seconds.
        """
        self.tokens_until_request = 0
        self._costs = costs
        self._tokens_per_step = tokens_per_step
        self._answered: tuple[float, float] | None = None
        self._is_pending = False
        self._pause = self._num_accepted = 0
        self._window: _Window | None = None
        self._ignored: tuple[int, ...] = ()
        self._gain_s = RecentMean(0.0, _OWN_MEMORY_DRAFTS)
        self._accepted: defaultdict[int, RecentMean] = defaultdict(
            lambda: RecentMean(0.0, _OWN_MEMORY_DRAFTS)
        )

    def accept(self, draft: tuple[int, ...], wait_s: float) -> bool:
        """Return True if a draft should be verified; the round has waited `wait_s` for it."""
        self._end_window()
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

    def record(self, round: RoundRecord) -> None:
        """Record a round; after the last one also what the last request has saved."""
        if self._answered is not None:
            answered_s, answer_s = self._answered
            # A client that reads slowly counts little.
            self._costs.between_s.add(min(round.started_s - answered_s, answer_s))
            self._answered = None
        if round.answer is not None and not round.is_prefill:
            self._answered = round.answered_s, round.answer_s
            if round.num_decoded:
                self._record_extension(round.answer.choices, round.forward_s, round.answer_s)
        if self._is_pending and self._window and round.drafts and not round.is_free:
            self._record_verification(self._window, round)
        if round.is_last:
            self._end_window()

    def _record_verification(self, window: _Window, round: RoundRecord) -> None:
        """Record the cost and the result of a draft that was looked up."""
        num_drafts, spent_s = len(round.drafts), round.answer_s + self._costs.between_s.value
        if not round.is_prefill:
            window.spent_s += _COST_MARGIN * spent_s
            self._costs.record_verification(num_drafts, spent_s)
        self._is_pending, self._num_accepted = False, round.num_accepted
        window.num_tokens += 1 + round.num_accepted
        self._record_matches(num_drafts, round.num_accepted)
        self._end_window()
        self._plan_request()

    def _record_extension(self, choices: Sequence[int], forward_s: float, spent_s: float) -> None:
        """Record a step without a draft; it also shows what a draft that was not used was worth."""
        costs, num_tokens = self._costs, len(choices)
        usual = self._tokens_per_step(costs.forward_s or forward_s / num_tokens)
        is_long = costs.record_step(num_tokens, forward_s, spent_s, usual)
        self.tokens_until_request = max(0, self.tokens_until_request - num_tokens)
        if self._window and not is_long:
            self._window.num_tokens += num_tokens
            self._window.spent_s += spent_s + costs.between_s.value
        elif self._window and usual > 1:
            self._window.spent_s += costs.message_s.value  # the request has cut a longer step in two
        draft, self._ignored = self._ignored, ()
        if draft:
            self._record_ignored(draft, choices)

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

    def _record_matches(self, num_drafts: int, num_accepted: int) -> None:
        self._costs.sizes[num_drafts.bit_length()].accepted.add(num_accepted)
        self._accepted[num_drafts.bit_length()].add(num_accepted)

    def _end_window(self) -> None:
        """Record what the last request has saved: after its verification, before the next one, at the end."""
        if self._window:
            self._record_gain(self._window.num_tokens * self._token_s() - self._window.spent_s)

    def _record_gain(self, gain_s: float) -> None:
        """Record the seconds that the last request has saved; negative if it has cost more."""
        window, self._window = self._window, None
        if window and self._costs.forward_s:
            self._costs.gain_s[window.after.bit_length()].add(gain_s)
            self._gain_s.add(gain_s)

    def _token_s(self) -> float:
        """Return the seconds of a token that is decoded without a draft."""
        forward_s = self._costs.forward_s
        return forward_s + self._costs.message_s.value / self._tokens_per_step(forward_s)

    def _pays(self, num_drafts: int) -> bool:
        size = self._costs.sizes[num_drafts.bit_length()]
        if size.num_verified < _TRIAL_DRAFTS or not self._costs.forward_s:
            return True
        size.num_ignored += 1
        accepted = blend(size.accepted, self._accepted[num_drafts.bit_length()])
        return size.num_ignored >= _EXPLORE_EVERY or self._saved_s(num_drafts, accepted) > 0

    def _saved_s(self, num_drafts: int, num_accepted: float) -> float:
        """Return the seconds that the verification of a draft saves if this many tokens are accepted."""
        costs, steps = self._costs, self._costs.sizes[num_drafts.bit_length()].steps.value
        spent_s = _COST_MARGIN * steps * (costs.forward_s + costs.message_s.value)
        return (1 + num_accepted) * self._token_s() - spent_s

    def _plan_request(self) -> None:
        """Set the number of tokens before the next request."""
        costs = self._costs
        if not costs.forward_s:
            self.tokens_until_request = 1  # a first token without a draft, to compare
            return
        lost_s = max(0.0, -blend(costs.gain_s[self._num_accepted.bit_length()], self._gain_s))
        self.tokens_until_request = max(self._pause, int(lost_s / (_LOST_SHARE * self._token_s())))
        if self._tokens_per_step(costs.forward_s) > 1 and costs.is_reference_due:
            self.tokens_until_request = max(self.tokens_until_request, _REFERENCE_TOKENS)


def blend(pool: RecentMean, own: RecentMean) -> float:
    """Return a response's own mean, to which the pool of all responses is added as a few values."""
    weight = min(_POOL_WEIGHT, pool.weight)
    return (weight * pool.value + own.weight * own.value) / max(weight + own.weight, 1e-9)
