"""The scenario `structured`: its responses fit its grammar, and its report compares them."""

import io
import json
import random
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.harness.command import Context, Parts
from benchmarks.harness.machine import this_machine
from benchmarks.scenarios.structured import (
    ASKED,
    FREE,
    GRAMMAR,
    MASKED,
    UNMASKED,
    VOCABULARY,
    Answer,
    Plan,
    draw_response,
    large_tokenizer,
    make_report,
)
from router.requests.grammars import library_form
from services.common.grammars.follower import GrammarFollower
from services.common.grammars.library import compile_grammar, load_tokenizer


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(this_machine(), Parts(tmp_path, "", False), Console(file=io.StringIO()))


def test_the_large_vocabulary_spells_text_that_fits_the_schema() -> None:
    tokenizer = load_tokenizer(large_tokenizer(), VOCABULARY)
    assert tokenizer.vocab_size == VOCABULARY
    follower = GrammarFollower(compile_grammar(tokenizer, library_form(GRAMMAR)), VOCABULARY)
    response = draw_response(follower, random.Random(1))
    assert tokenizer.decode_str(response).startswith("{") and len(set(response)) > 20


def test_the_report_compares_both_parts(tmp_path: Path, context: Context) -> None:
    seconds = {8: {MASKED: [0.052, 0.051, 0.053], UNMASKED: [0.050, 0.050, 0.050]}}
    answers = {FREE: [Answer(1.0, 100, 20, 40, 30)] * 3, ASKED: [Answer(1.5, 100, 30, 0, 0)] * 3}
    page = make_report(Plan(), context, seconds, answers).write(tmp_path, tmp_path).read_text("utf-8")
    assert "| 8 | 52.0 | 50.0 | 1.04x | 1.02 to 1.06 |" in page
    assert "| free drafts | 100 | 1.50x | 1.50 to 1.50 | 5.00 | 0.40 | 75% |" in page
    goals = json.loads((tmp_path / "structured.json").read_text("utf-8"))["goals"]
    assert [(goal["limit"], goal["is_least"]) for goal in goals] == [(1.05, False), (1.3, True)]
