"""Text sampled by exact speculation has the target's own distribution; another known scheme has not."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from flyserve.core.noise import Floats, Ints
from flyserve.core.presets import EXACT
from flyserve.core.request import SamplingParams
from flyserve.core.rule import decide
from flyserve.core.types import Coupling, Evidence, Position, ResponseLimits, RuleState, SparseDistribution
from services.engine.head.candidates import FewCandidates
from services.engine.head.sampler import DrawnToken, Sampler, SampleRequest

WORDS = 10
DRAWS = 8_000
TEMPERATURE = 0.9
CRITICAL = 2.326
"""The standard normal distribution's quantile at 0.99."""


def table(seed: int) -> Floats:
    """Return logits of the next word by the last one, (WORDS, WORDS)."""
    return np.random.default_rng(seed).normal(size=(WORDS, WORDS)) * 1.2


TARGET = table(1)
DRAFTER = table(1) * 0.6 + table(2) * 0.8
"""Another model, which sometimes makes the same choice."""


def next_word(logits: Floats, last: int) -> Floats:
    p = np.exp(logits[last] / TEMPERATURE)
    return p / p.sum()


Drafter = Callable[["list[Text]", int, Coupling], list[DrawnToken]]
"""Function that drafts one word per text, after its first drafts."""


@dataclass(slots=True)
class Text:
    """One sequence: word 0 is its prompt."""

    seed: int
    words: list[int] = field(default_factory=lambda: [0])
    drafts: list[int] = field(default_factory=list)
    proposals: list[SparseDistribution | None] = field(default_factory=list)

    def place(self, coupling: Coupling, index: int, is_proposing: bool) -> SampleRequest:
        """Return the logits of the word after the first `index` drafts."""
        sampling = SamplingParams(temperature=TEMPERATURE, seed=self.seed, coupling=coupling)
        is_judged = not is_proposing and index < len(self.drafts)
        return SampleRequest(
            sampling,
            len(self.words) + index,
            self.drafts[index] if is_judged else -1,
            self.proposals[index] if is_judged else None,
            is_proposing,
        )

    def last(self, index: int) -> int:
        return [*self.words, *self.drafts][len(self.words) + index - 1]


def drawn(
    logits: Floats, texts: list[Text], index: int, coupling: Coupling, proposes: bool
) -> list[DrawnToken]:
    """Draw one word per text, after its first `index` drafts, with the engine's own sampler."""
    rows = logits[[text.last(index) for text in texts]].astype(np.float32)
    ids = np.tile(np.arange(WORDS), (len(texts), 1))
    places = [text.place(coupling, index, proposes) for text in texts]
    candidates = FewCandidates(ids, rows, [place.sampling for place in places])
    return Sampler(candidates, places).draw()


def judged(texts: list[Text], num_drafts: int, coupling: Coupling) -> list[list[int]]:
    """Return the target's choices after each of the drafts of each text."""
    columns = [drawn(TARGET, texts, index, coupling, False) for index in range(num_drafts + 1)]
    return [[column[row].token for column in columns] for row in range(len(texts))]


def proposed(texts: list[Text], index: int, coupling: Coupling) -> list[DrawnToken]:
    """Draw the next draft of each text from the drafter's distribution."""
    return drawn(DRAFTER, texts, index, coupling, True)


def looked_up(texts: list[Text], index: int, coupling: Coupling) -> list[DrawnToken]:
    """Return a word for each text that is not drawn: it depends on the last one alone."""
    return undrawn([int(DRAFTER[text.last(index)].argmax()) for text in texts], coupling)


def undrawn(words: list[int], coupling: Coupling) -> list[DrawnToken]:
    """Return words that are not drawn, with all probability on each."""
    needs = SamplingParams(temperature=1.0, coupling=coupling).needs_distributions
    return [DrawnToken(word, False, SparseDistribution.certain(word) if needs else None) for word in words]


def first_two_words(coupling: Coupling, num_drafts: int, draft: Drafter = proposed) -> Ints:
    """Count the pairs of words that begin a response, (WORDS, WORDS)."""
    texts = [Text(seed) for seed in range(DRAWS)]
    counts = np.zeros((WORDS, WORDS), dtype=np.int64)
    while texts:
        for text in texts:
            text.drafts, text.proposals = [], []
        for index in range(num_drafts):
            for text, token in zip(texts, draft(texts, index, coupling), strict=True):
                text.drafts.append(token.token)
                text.proposals.append(token.distribution)
        for text, choices in zip(texts, judged(texts, num_drafts, coupling), strict=True):
            positions = tuple(Position(d, c, 1.0) for d, c in zip(text.drafts, choices, strict=False))
            evidence = Evidence(positions, choices[-1], 1.0)
            _, decision = decide(EXACT, RuleState(), evidence, ResponseLimits(max_new_tokens=10))
            text.words += [decided.id for decided in decision.decided]
        for text in texts:
            if len(text.words) > 2:
                counts[text.words[1], text.words[2]] += 1
        texts = [text for text in texts if len(text.words) <= 2]
    return counts


def deviation(counts: Ints) -> float:
    """Return the chi-square of the pairs against the target as a standard normal variable (Wilson-Hilferty).

    Rare pairs are merged until at least 5 are expected of each cell.
    """
    first = next_word(TARGET, 0)
    expected = DRAWS * (first[:, None] * np.array([next_word(TARGET, word) for word in range(WORDS)]))
    order = expected.reshape(-1).argsort()
    cells: list[list[float]] = [[0.0, 0.0]]
    for observed, wanted in zip(counts.reshape(-1)[order], expected.reshape(-1)[order], strict=True):
        if cells[-1][1] >= 5.0:
            cells.append([0.0, 0.0])
        cells[-1][0] += observed
        cells[-1][1] += wanted
    chi_square = sum((observed - wanted) ** 2 / wanted for observed, wanted in cells)
    spread = 2 / (9 * (len(cells) - 1))
    return ((chi_square / (len(cells) - 1)) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)


@pytest.mark.parametrize(("coupling", "num_drafts"), [(Coupling.SHARED_NOISE, 3), (Coupling.REJECTION, 2)])
def test_two_words_of_exact_speculation_have_the_targets_distribution(
    coupling: Coupling, num_drafts: int
) -> None:
    assert abs(deviation(first_two_words(coupling, num_drafts))) < CRITICAL


def test_drafts_that_are_not_drawn_leave_the_targets_distribution() -> None:
    """Drafts that are looked up, and those of another vocabulary."""
    assert abs(deviation(first_two_words(Coupling.REJECTION, 2, looked_up))) < CRITICAL


def test_a_draft_that_is_not_drawn_with_the_probability_of_a_drawn_one_is_biased() -> None:
    """A draft that is looked up or greedy is no sample: with such a probability it is accepted too often."""

    def claimed(texts: list[Text], index: int, coupling: Coupling) -> list[DrawnToken]:
        found = looked_up(texts, index, coupling)
        return [
            DrawnToken(
                each.token, False, SparseDistribution((each.token, (each.token + 1) % WORDS), (0.5, 0.5))
            )
            for each in found
        ]

    assert deviation(first_two_words(Coupling.REJECTION, 2, claimed)) > CRITICAL


def test_rejection_accepts_as_often_as_any_scheme_could() -> None:
    """The share is the overlap of both distributions; that of shared noise lies below, above its bound."""
    accepted = {}
    for coupling in Coupling:
        texts = [Text(seed) for seed in range(5000)]
        for text, draft in zip(texts, drawn(DRAFTER, texts, 0, coupling, True), strict=True):
            text.drafts, text.proposals = [draft.token], [draft.distribution]
        choices = judged(texts, 1, coupling)
        accepted[coupling] = np.mean([c[0] == t.drafts[0] for c, t in zip(choices, texts, strict=True)])
    overlap = np.minimum(next_word(TARGET, 0), next_word(DRAFTER, 0)).sum()
    assert accepted[Coupling.REJECTION] == pytest.approx(overlap, abs=0.02)
    assert overlap / (2 - overlap) - 0.02 <= accepted[Coupling.SHARED_NOISE] <= overlap + 0.02
