"""Word problems: a count that changes in several steps, solved aloud one step at a time."""

import random
from dataclasses import dataclass

from demo.corpus.types import Family, Problem, Style
from demo.corpus.wording import CONTAINERS, NAMES, THINGS, Wording

_MAX_COUNT = 99
_GAIN_VERBS = ("buys", "finds", "wins", "collects")
_LOSS_VERBS = ("sells", "loses", "mails", "drops")


@dataclass(frozen=True, slots=True)
class _Step:
    """One change: its sentence in the story, its repetition in the solution, and its sum."""

    sentence: str
    recalled: str
    formula: str
    result: int


@dataclass(frozen=True, slots=True)
class _Story:
    name: str
    thing: str
    start: int
    steps: tuple[_Step, ...]

    @property
    def content(self) -> str:
        return f"{self.start} " + " ; ".join(step.formula for step in self.steps)


def word_problem(rng: random.Random, num_steps: int, starts: range, style: Style) -> Problem:
    """Draw a word problem of `num_steps` changes from one of `starts`; the count stays within 1 and 99."""
    story = _draw_story(rng, num_steps, starts)
    answer = str(story.steps[-1].result)
    prompt = _tell(story, Wording(rng, Style()))
    response = f"{_solve(story, Wording(rng, style))} Answer: {answer}"
    return Problem(Family.WORD_PROBLEM, prompt, response, answer, story.content)


def _draw_story(rng: random.Random, num_steps: int, starts: range) -> _Story:
    name, thing, start = rng.choice(NAMES), rng.choice(THINGS), rng.choice(starts)
    steps: list[_Step] = []
    count = start
    while len(steps) < num_steps:
        step = rng.choice((_gain, _gain, _loss, _loss, _pack, _scale, _gift))(rng, name, thing, count)
        if 1 <= step.result <= _MAX_COUNT:
            steps.append(step)
            count = step.result
    return _Story(name, thing, start, tuple(steps))


def _gain(rng: random.Random, name: str, thing: str, count: int) -> _Step:
    amount, verb = rng.randint(2, 39), rng.choice(_GAIN_VERBS)
    sentence = f"{name} {verb} {amount} more {thing}"
    return _Step(sentence, f"{name} {verb} {amount} {thing}", *_sum(count, "+", amount))


def _loss(rng: random.Random, name: str, thing: str, count: int) -> _Step:
    amount, verb = rng.randint(2, 39), rng.choice(_LOSS_VERBS)
    sentence = f"{name} {verb} {amount} of the {thing}"
    return _Step(sentence, f"{name} {verb} {amount} {thing}", *_sum(count, "-", amount))


def _gift(rng: random.Random, name: str, thing: str, count: int) -> _Step:
    amount, friend = rng.randint(2, 29), rng.choice([other for other in NAMES if other != name])
    sign, verb, word = rng.choice((("+", "gets", "from"), ("-", "gives", "to")))
    sentence = f"{name} {verb} {amount} {thing} {word} {friend}"
    return _Step(sentence, sentence, *_sum(count, sign, amount))


def _pack(rng: random.Random, name: str, thing: str, count: int) -> _Step:
    packs, each, container = rng.randint(2, 6), rng.randint(2, 9), rng.choice(CONTAINERS)
    sentence = f"{name} gets {packs} {container} with {each} {thing} each"
    recalled = f"{packs} {container} with {each} hold {packs * each} {thing}"
    return _Step(sentence, recalled, *_sum(count, "+", packs * each))


def _scale(rng: random.Random, name: str, thing: str, count: int) -> _Step:
    word, factor = rng.choice((("doubles", 2), ("triples", 3)))
    sentence = f"{name} {word} the number of {thing}"
    return _Step(
        sentence, f"{name} {word} the {thing}", f"{count} * {factor} = {count * factor}", count * factor
    )


def _sum(count: int, sign: str, amount: int) -> tuple[str, int]:
    result = count + amount if sign == "+" else count - amount
    return f"{count} {sign} {amount} = {result}", result


def _tell(story: _Story, wording: Wording) -> str:
    opening = wording.pick(("has", "owns", "starts with", "keeps"))
    sentences = [f"{story.name} {opening} {story.start} {story.thing}."]
    for step in story.steps:
        lead = wording.pick(("Then", "Later", "After that", "Next"))
        sentences.append(f"{lead} {step.sentence}.")
    question = wording.pick(
        (
            f"How many {story.thing} does {story.name} have now?",
            f"What is the number of {story.thing} of {story.name} at the end?",
            f"Find how many {story.thing} {story.name} has after all this.",
        )
    )
    return " ".join([*sentences, question])


def _solve(story: _Story, wording: Wording) -> str:
    lead = wording.pick(("We begin with", "At the start there are", "The story opens with"))
    sentences = [f"{lead} {story.start} {story.thing}."]
    for step in story.steps:
        opener = wording.pick(("Next", "Then", "Now", "Here"))
        joint = wording.pick(("so the count is", "which brings it to", "and that makes", "giving a total of"))
        sentences.append(f"{opener} {step.recalled}, {joint} {step.formula}.")
    ending = wording.pick(("In the end we count", "That leaves us with", "Altogether this makes"))
    sentences.append(f"{ending} {story.steps[-1].result} {story.thing}.")
    return " ".join(sentences)
