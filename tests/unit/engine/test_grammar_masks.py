"""The head under a grammar: choices, excluded drafts, log-probabilities, faults, and memory."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from flyserve.core.noise import BLOCK
from flyserve.core.request import SamplingParams
from flyserve.core.types import Coupling
from services.common.grammars.follower import Mask
from services.engine.base import ForwardInput
from services.engine.head import head as head_module
from services.engine.head.grammar_masks import GrammarMasks, row_mask
from services.engine.head.head import Head
from tests.support.grammars import TOO_WIDE_AFTER_AA, LocalGrammar, encoded, tokenizer

VOCAB = 640
END = 0
PROMPT = [3, 4]


def of_lark(text: str, vocab_size: int = VOCAB) -> LocalGrammar:
    return LocalGrammar(json.dumps({"grammars": [{"lark_grammar": text}]}), vocab_size)


YES_OR_NO = of_lark('start: "yes" | "no"')


def head_of(vocab_size: int = VOCAB) -> Head:
    return Head(vocab_size, mask_patience_s=60)


def work(response: list[int], num_outputs: int = 1, **kwargs: Any) -> ForwardInput:
    history = [*PROMPT, *response]
    sampling = replace(kwargs.pop("sampling", SamplingParams()), stop_token_ids=(END,))
    drafts = [*history[len(history) - num_outputs + 1 :], -1]
    made = ForwardInput(0, 0, history, num_outputs, sampling, len(PROMPT), history, drafts=drafts)
    return replace(made, **{"grammar": YES_OR_NO, **kwargs})


def logits_of(num_rows: int, width: int = VOCAB) -> torch.Tensor:
    return torch.randn(num_rows, width, generator=torch.Generator().manual_seed(3)) * 4


def starts_of(text: str) -> set[int]:
    """Return the tokens that are a beginning of a text."""
    library = tokenizer()
    return {token for token in range(1, VOCAB) if text.startswith(library.decode_str([token]))}


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(),
        SamplingParams(temperature=1.0, seed=1),
        SamplingParams(temperature=1.0, top_k=5, top_p=0.9, min_p=0.01, seed=1),
        SamplingParams(temperature=1.0, coupling=Coupling.REJECTION, seed=1),
        SamplingParams(repetition_penalty=1.3, frequency_penalty=0.5, logit_bias={7: 100.0}),
    ],
)
@pytest.mark.parametrize("num_others", [0, 40])
def test_choices_are_made_under_the_mask(sampling: SamplingParams, num_others: int) -> None:
    head = head_of()
    others = [replace(work([], sampling=sampling), grammar=None, slot=n + 1) for n in range(num_others)]
    batch = [work([], sampling=sampling), *others]
    scores, *rest = head(logits_of(len(batch)), batch)
    assert scores.choices[0] in starts_of("yes") | starts_of("no")
    plain = Head(VOCAB)(logits_of(len(batch)), [replace(batch[0], grammar=None), *others])
    assert rest == plain[1:]


def test_a_draft_outside_the_grammar_is_reported_and_ends_the_masks() -> None:
    yes = encoded("yes")
    drafts = [*yes, 5, 6]
    (scores,) = head_of()(logits_of(len(drafts) + 1), [work(drafts, len(drafts) + 1)])
    assert scores.excluded == (*(False for _ in yes), True, False, False)
    assert scores.choices[len(yes)] == END


def test_min_tokens_delays_the_end_only_where_the_grammar_allows_more_text() -> None:
    sampling, letters = SamplingParams(min_tokens=99), of_lark("start: /[a-z]+/")
    yes = encoded("yes")
    for grammar, ends in ((YES_OR_NO, True), (letters, False)):
        item = work(yes, len(yes) + 1, sampling=sampling, grammar=grammar)
        logits = logits_of(len(yes) + 1)
        logits[:, END] = 99.0
        (scores,) = head_of()(logits, [item])
        assert not scores.error and (scores.choices[-1] == END) == ends
        assert END not in scores.choices[:-1]


def test_entropies_and_logprobs_are_those_of_the_model() -> None:
    logits = logits_of(1)
    (masked,) = head_of()(logits, [work([], num_logprobs=3)])
    (plain,) = Head(VOCAB)(logits, [replace(work([], num_logprobs=3), grammar=None)])
    assert masked.entropies == plain.entropies
    assert masked.logprobs[0].top == plain.logprobs[0].top
    expected = logits.log_softmax(-1)[0, masked.choices[0]].item()
    assert masked.logprobs[0].choice == pytest.approx(expected, abs=1e-4)


def test_rows_of_the_prompt_are_not_masked() -> None:
    history = [*PROMPT, *encoded("yes")]
    logits = logits_of(len(history))
    scored = replace(work(encoded("yes"), len(history)), prompt_length=len(PROMPT) + 1)
    (scores,) = head_of()(logits, [replace(scored, history=[*PROMPT, 9, *encoded("yes")[1:]])])
    assert scores.choices[: len(PROMPT)] == tuple(logits[: len(PROMPT)].argmax(-1).tolist())


def test_logits_may_have_more_rows_than_the_tokenizer_has_tokens() -> None:
    logits = logits_of(1, 704)
    logits[:, VOCAB:] = 100.0
    (scores,) = head_of(700)(logits, [work([], grammar=of_lark('start: "yes" | "no"', 700))])
    assert scores.choices[0] in starts_of("yes") | starts_of("no")


def test_a_fault_is_an_error_of_its_sequence_alone() -> None:
    head, good = head_of(), replace(work([]), slot=1)
    bad, fine = head(logits_of(2), [replace(work([]), history=[*PROMPT, 5], tokens=[*PROMPT, 5]), good])
    assert "token 0 of the response is excluded" in bad.error and bad.field == "grammar"
    assert fine.choices and not fine.error


@pytest.mark.parametrize("logits_of_chunk", [1, 1 << 21])
def test_a_fault_of_a_draft_ends_the_scores_before_it(
    logits_of_chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_module, "_CHUNK_LOGITS", {"cpu": logits_of_chunk})
    (a,), (b,) = encoded("a"), encoded("b")
    wide, logits = of_lark(TOO_WIDE_AFTER_AA), logits_of(4)
    logits[0, a], logits[1, b] = 99.0, 99.0
    (scores,) = head_of()(logits, [work([a, a, b], 4, grammar=wide)])
    assert (scores.choices, scores.error) == ((a, b), "")
    (scores,) = head_of()(logits[:1], [work([a, a], grammar=wide)])
    assert "items" in scores.error and scores.field == "grammar"


class SlowGrammar(LocalGrammar):
    """A grammar whose masks wait for an event."""

    def __init__(self) -> None:
        super().__init__()
        self.is_free = threading.Event()

    def masks(self, *arguments: Any) -> Iterator[Mask]:
        assert self.is_free.wait(240)
        return super().follower().masks(*arguments)

    def follower(self) -> Any:
        return self


def test_a_late_mask_delays_its_own_sequence_alone() -> None:
    head, slow = Head(VOCAB, mask_patience_s=0), SlowGrammar()
    batch = [work([], grammar=slow), replace(work([]), slot=1, grammar=None)]
    late, fine = head(logits_of(2), batch)
    assert fine.choices and not fine.error and late.late is not None and not late.choices
    slow.is_free.set()
    late.late.result(240)
    (scores,) = head(logits_of(1), batch[:1])
    assert scores.choices and scores.late is None


def test_masks_follow_roll_backs_repeated_forwards_and_reused_slots() -> None:
    head, yes, no = head_of(), encoded("yes"), encoded("no")
    for response, choice in ((yes, END), (no, END), (no, END), (yes, END)):
        item = work(response)
        head.start([item])
        (scores,) = head(logits_of(1), [item])
        assert scores.choices == (choice,)
    head.forget(0)
    (scores,) = head(logits_of(1), [work(no, grammar=of_lark('start: "no" "no"'))])
    assert scores.choices[0] in starts_of("no")


def test_nothing_is_kept_of_closed_sequences() -> None:
    masks = GrammarMasks(VOCAB)
    masks.start([work([]), replace(work([]), slot=1)])
    assert len(masks) == 2
    masks.forget(0)
    masks.forget(1)
    assert len(masks) == 0


@pytest.mark.parametrize("vocab_size", [50, 64, 640, 1000])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.1, 0.5, 0.99, 1.0])
def test_a_row_lists_what_its_mask_allows_or_excludes(vocab_size: int, share: float) -> None:
    allowed = np.random.default_rng(7).random(vocab_size) < share
    bits = np.zeros(-(-vocab_size // 32) * 32, np.bool_)
    bits[:vocab_size] = allowed
    row = row_mask(np.packbits(bits, bitorder="little").view(np.uint32), vocab_size)
    assert row.ids.tolist() == np.flatnonzero(allowed if row.lists_allowed else ~allowed).tolist()
    assert row.blocks.tolist() == sorted({token // BLOCK for token in row.ids.tolist()})
    assert row.lists_allowed == (8 * allowed.sum() <= vocab_size)


@pytest.mark.parametrize("text", ['start: "yes" | "no"', "start: /(?s:.*)/", 'start: /[a-z]*/ "!"'])
def test_masked_logits_and_their_maxima_agree(text: str) -> None:
    item = work([], grammar=of_lark(text))
    blocks = logits_of(1).view(1, -1, BLOCK)
    before, maxima, masks = blocks.clone().flatten(), blocks.amax(-1), GrammarMasks(VOCAB, 60)
    masks.join([item])
    masks.apply(blocks, maxima, item, 0)
    assert torch.equal(maxima, blocks.amax(-1))
    left = ~blocks.flatten().isneginf()
    assert left.any() and torch.equal(blocks.flatten()[left], before[left])
