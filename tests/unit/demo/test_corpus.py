"""The corpus: seeded, checkable, split by content; and the tokenizer that reads it."""

from __future__ import annotations

import random
import re
from functools import cache
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast

from demo.corpus import Family, Problem, Split, Style, check, generate, problems
from demo.corpus.auxiliary import repetition, sums
from demo.corpus.types import is_held_out
from demo.tasks import load_tasks, make_tasks
from demo.tokenizer import CONTEXT_LENGTH, VOCABULARY_SIZE, build_tokenizer, load_tokenizer, render

EVERY_FAMILY = pytest.mark.parametrize("family", Family)
SEEDS = st.integers(0, 2**32)
FAMILIES = st.sampled_from(Family)
SPLITS = st.sampled_from(Split)
BRIEF = settings(max_examples=40, deadline=None)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return _tokenizer()


@EVERY_FAMILY
def test_splits_share_no_content_whatever_the_seeds(family: Family) -> None:
    contents = [
        {p.content for seed in range(3) for p in generate(seed, split, family, 200)} for split in Split
    ]
    train, held_out, hard = contents
    assert train.isdisjoint(held_out) and train.isdisjoint(hard) and held_out.isdisjoint(hard)
    assert all(map(is_held_out, held_out)) and not any(map(is_held_out, train))


@EVERY_FAMILY
def test_thousands_of_distinct_held_out_problems_can_be_drawn(family: Family) -> None:
    drawn = generate(5, Split.HELD_OUT, family, 3000)
    assert len({problem.content for problem in drawn}) == 3000


@BRIEF
@given(SEEDS, FAMILIES, SPLITS, st.floats(0, 1))
def test_the_checker_accepts_the_reference(seed: int, family: Family, split: Split, shift: float) -> None:
    (problem,) = generate(seed, split, family, 1, Style(shift))
    assert check(problem, problem.response)
    assert problem.response.endswith(f"Answer: {problem.answer}")


@BRIEF
@given(SEEDS, FAMILIES, st.data())
def test_the_checker_rejects_any_changed_digit(seed: int, family: Family, data: st.DataObject) -> None:
    problem = _with_digit_in_answer(seed, family)
    start = problem.response.rindex("Answer:")
    where = data.draw(
        st.sampled_from([m.start() for m in re.finditer(r"\d", problem.response) if m.start() > start])
    )
    digit = data.draw(st.sampled_from([d for d in "0123456789" if d != problem.response[where]]))
    assert not check(problem, problem.response[:where] + digit + problem.response[where + 1 :])


@pytest.mark.parametrize("text", ["", "Answer:", "42", "Answer: 42 and more", "The answer is 42"])
def test_the_checker_rejects_other_forms(text: str) -> None:
    assert not check(Problem(Family.WORD_PROBLEM, "", "", "42", ""), text)


def test_a_style_changes_wording_but_not_content() -> None:
    plain = generate(1, Split.TRAIN, Family.TRACE, 50)
    shifted = generate(1, Split.TRAIN, Family.TRACE, 50, Style(1.0))
    assert [p.prompt for p in plain] == [p.prompt for p in shifted]
    assert [p.answer for p in plain] == [p.answer for p in shifted]
    assert [p.response for p in plain] != [p.response for p in shifted]


@EVERY_FAMILY
def test_word_counts_leave_room_in_the_context(family: Family, tokenizer: PreTrainedTokenizerFast) -> None:
    for problem in generate(2, Split.HARD, family, 50):
        assert len(tokenizer.encode(render(problem.prompt) + problem.response)) < CONTEXT_LENGTH // 2


def test_corpus_text_is_whole_words_and_single_digits(tokenizer: PreTrainedTokenizerFast) -> None:
    for problem in islice(problems(8, Split.HELD_OUT, Family.LOOKUP), 50):
        tokens = tokenizer.tokenize(problem.prompt)
        assert len(tokens) == len(re.findall(r"\d|[A-Za-z]+|[^\sA-Za-z\d]+", problem.prompt))


@BRIEF
@given(st.text())
def test_every_text_survives_the_tokenizer(text: str) -> None:
    tokenizer = _tokenizer()
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_the_tokenizer_is_the_same_after_saving(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert len(loaded) == VOCABULARY_SIZE
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert loaded.eos_token_id == tokenizer.eos_token_id


def test_the_chat_template_is_the_training_format(tokenizer: PreTrainedTokenizerFast) -> None:
    messages = [{"role": "user", "content": "Run this."}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == render("Run this.")


def test_repetitions_hold_only_what_the_prompt_holds() -> None:
    rng = random.Random(0)
    for _ in range(200):
        prompt, response = repetition(rng)
        assert set(re.findall(r"\w+", response)) <= set(re.findall(r"\w+", prompt))


def test_sums_are_right() -> None:
    rng = random.Random(0)
    for _ in range(200):
        _, response = sums(rng)
        for task, result in re.findall(r"(\d+ [-+*] \d+) = (\d+)", response):
            left, sign, right = task.split()
            values = {"+": int(left) + int(right), "-": int(left) - int(right), "*": int(left) * int(right)}
            assert values[sign] == int(result)


def test_shipped_tasks_are_balanced_and_reproducible() -> None:
    tasks = load_tasks()
    assert tasks == make_tasks(len(tasks) // len(Family))
    assert {task.family for task in load_tasks(3)} == set(Family)
    assert all(task.is_solved_by(f"Answer: {task.answer}") for task in tasks)


@cache
def _tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer()


def _with_digit_in_answer(seed: int, family: Family) -> Problem:
    return next(p for p in problems(seed, Split.HELD_OUT, family) if re.search(r"\d", p.answer))
