"""A deterministic language made of hashes: the choices, entropies and logits of a simulated model."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from flyserve.core.noise import Ints
from flyserve.core.types import EntropyEstimator, PositionLogprobs
from services.engine.base import ForwardInput
from services.engine.head.filters import Logits

_MASK = (1 << 64) - 1
_UNIT = 1.0 / (1 << 64)
_CHOICE, _DEVIATION, _OTHER, _DOUBT, _ENTROPY, _LENGTH, _WEIGHT = range(1, 8)
"""Domains of the hash: the use of a random number."""
_CANDIDATES = 8
"""Tokens of a distribution, if the vocabulary has this number of words."""
_LEAD = {True: 0.2, False: 5.0}
"""Distance of the choice's logit above all others, where the model is uncertain and where it is not."""
_UNLIKELY = -30.0
"""Smallest log-probability reported, that of tokens outside the distribution."""


@dataclass(frozen=True, slots=True)
class SimulatedConfig:
    """A simulated model; a target and its drafter share all values except `agreement` and the costs.

    Attributes:
        seed: Seed of the language; models with equal seeds have equal languages.
        vocab_size: Number of token ids.
        context_length: Longest sequence in tokens.
        agreement: Probability per position of making the choice of a model with agreement 1.
        order: Number of previous tokens that a choice depends on.
        first_word: Token ids below this are special and never chosen, except `end_id`.
        end_id: Token that ends every response.
        response_tokens: Shortest and longest response, both inclusive, without the end token.
        uncertain_share: Share of positions with an entropy of 0.6 to 1.1 nats; others lie below 0.05.
        base_s: Seconds of a forward, independent of its size.
        per_token_s: Seconds per token row up to `knee_tokens`.
        knee_tokens: Rows above which a forward is limited by compute.
        per_token_above_s: Seconds per token row above the knee.
        per_sequence_s: Seconds per sequence in the batch.
    """

    seed: int = 0
    vocab_size: int = 1024
    context_length: int = 4096
    agreement: float = 1.0
    order: int = 3
    first_word: int = 16
    end_id: int = 2
    response_tokens: tuple[int, int] = (64, 256)
    uncertain_share: float = 0.3
    base_s: float = 0.002
    per_token_s: float = 0.00002
    knee_tokens: int = 64
    per_token_above_s: float = 0.0001
    per_sequence_s: float = 0.0

    @property
    def fingerprint(self) -> str:
        """Hash of all values that the scores depend on."""
        relevant = {key: value for key, value in asdict(self).items() if not key.endswith("_s")}
        relevant.pop("knee_tokens")
        return hashlib.blake2b(repr(sorted(relevant.items())).encode(), digest_size=16).hexdigest()

    @property
    def token_map_hash(self) -> str:
        """Hash of the token map; equal for equal vocabulary sizes."""
        return hashlib.blake2b(f"simulated:{self.vocab_size}".encode(), digest_size=16).hexdigest()

    def forward_s(self, num_sequences: int, num_tokens: int) -> float:
        """Return the seconds of a forward."""
        above = max(0, num_tokens - self.knee_tokens)
        rows_s = (num_tokens - above) * self.per_token_s + above * self.per_token_above_s
        return self.base_s + rows_s + num_sequences * self.per_sequence_s


class SimulatedLanguage:
    """Choices, entropies and logits by position, as functions of the tokens before it."""

    def __init__(self, config: SimulatedConfig) -> None:
        self._config = config

    def choice(self, item: ForwardInput, position: int) -> int:
        """Return the token that the model chooses at `position`."""
        context = self._context(item, position)
        if self._ends(item, position):
            return self._config.end_id
        choice = self._word(context, _CHOICE)
        if self._config.agreement < 1.0 and _unit(context, _DEVIATION) >= self._config.agreement:
            return self._word(context, _OTHER)
        return choice

    def entropy(self, item: ForwardInput, position: int) -> float:
        """Return the entropy at `position` in the unit of the sequence's estimator."""
        context = self._context(item, position)
        drawn = _unit(context, _ENTROPY)
        nats = 0.6 + 0.5 * drawn if self._is_uncertain(context) else 0.05 * drawn
        return (
            nats / math.log(self._config.vocab_size) if item.entropy is EntropyEstimator.NORMALIZED else nats
        )

    def _candidates(self, item: ForwardInput, position: int) -> tuple[list[int], list[float]]:
        """Return ids and logits of the choice and other tokens; at the end of a response only the end."""
        context, choice = self._context(item, position), self.choice(item, position)
        num_words = self._config.vocab_size - self._config.first_word
        first = self._word(context, _CHOICE) - self._config.first_word
        width = min(_CANDIDATES, num_words)
        others = (self._config.first_word + (first + offset) % num_words for offset in range(width + 1))
        ids = list(dict.fromkeys((choice, *others)))[:width]
        if self._ends(item, position):
            return ids, [0.0] + [-math.inf] * (width - 1)
        lead = _LEAD[self._is_uncertain(context)]
        weights = (lead + 2.0 * _unit(_mix(context, token), _WEIGHT) for token in ids[1:])
        logits = [0.0, *(-weight for weight in weights)]
        allowed = [-math.inf if self.excludes(item, position, token) else 0.0 for token in ids]
        is_possible = max(allowed) == 0.0
        return ids, [
            logit + mask if is_possible else logit for logit, mask in zip(logits, allowed, strict=True)
        ]

    def _is_uncertain(self, context: int) -> bool:
        return _unit(context, _DOUBT) < self._config.uncertain_share

    def _ends(self, item: ForwardInput, position: int) -> bool:
        """Check that the response ends here: at a length drawn from its prompt, if its sampling allows it."""
        response_length = position - item.prompt_length
        if item.sampling.ignore_eos or response_length < item.sampling.min_tokens:
            return False
        shortest, longest = self._config.response_tokens
        if response_length < shortest:
            return False
        prompt = self._context(item, item.prompt_length)
        return response_length >= shortest + _mix(prompt, _LENGTH) % (longest - shortest + 1)

    def candidates(self, item: ForwardInput) -> tuple[Ints, Logits]:
        """Return ids and logits, both (outputs, candidates), of an input's next tokens; the choice first."""
        positions = range(item.first_position, item.first_position + item.num_outputs)
        rows = [self._candidates(item, position) for position in positions]
        return np.array([ids for ids, _ in rows]), np.array([logits for _, logits in rows], dtype=np.float32)

    def logprobs(
        self, item: ForwardInput, choices: Sequence[int], count: int | None
    ) -> tuple[PositionLogprobs, ...]:
        """Return the log-probabilities of choices, drafts and `count` most likely tokens; none if None."""
        if count is None or not item.num_outputs:
            return ()
        rows = zip(*self.candidates(item), choices, item.drafts, strict=True)
        return tuple(_logprobs(ids, logits, choice, draft, count) for ids, logits, choice, draft in rows)

    def gaps(self, item: ForwardInput, choices: Sequence[int]) -> tuple[float, ...]:
        """Return the gaps of the drafts, if the input requests them; 0 where none follows."""
        if not item.with_gaps:
            return ()
        positions = range(item.first_position, item.first_position + item.num_outputs)
        rows = zip(positions, choices, item.drafts, strict=True)
        return tuple(self._gap(item, position, choice, draft) for position, choice, draft in rows)

    def _gap(self, item: ForwardInput, position: int, choice: int, draft: int) -> float:
        """Return the gap of a draft; the choice itself and no draft need no distribution for it."""
        if draft < 0 or draft == choice:
            return 0.0
        ids, logits = self._candidates(item, position)
        return _logprobs(np.array(ids), np.array(logits, dtype=np.float32), choice, draft, 0).gap

    def excludes(self, item: ForwardInput, position: int, draft: int) -> bool:
        return (
            draft in item.sampling.stop_token_ids and position - item.prompt_length < item.sampling.min_tokens
        )

    def _context(self, item: ForwardInput, position: int) -> int:
        """Return a hash of the tokens that the distribution at `position` depends on."""
        state = _mix(self._config.seed, position)
        for token in item.history[max(0, position - self._config.order) : position]:
            state = _mix(state, token)
        return state

    def _word(self, context: int, domain: int) -> int:
        return self._config.first_word + _mix(context, domain) % (
            self._config.vocab_size - self._config.first_word
        )


def _logprobs(ids: Ints, logits: Logits, choice: int, draft: int, count: int) -> PositionLogprobs:
    """Return the log-probabilities of one position."""
    log_p = logits - np.log(np.exp(logits).sum())
    known = dict(zip(ids.tolist(), log_p.tolist(), strict=True))
    top = sorted(known.items(), key=lambda pair: -pair[1])[:count]
    of_draft = None if draft < 0 else max(_UNLIKELY, known.get(draft, _UNLIKELY))
    of_choice = max(_UNLIKELY, known.get(choice, _UNLIKELY))
    return PositionLogprobs(draft=of_draft, choice=of_choice, top=tuple(top))


def _mix(state: int, value: int) -> int:
    """Apply one step of a 64-bit hash (the finalizer of splitmix64)."""
    mixed = (state + (value + 1) * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)


def _unit(context: int, domain: int) -> float:
    return _mix(context, domain) * _UNIT
