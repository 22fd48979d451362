"""Look-ups: several values to be found in a paragraph, where every value stands right after its key."""

import random
from dataclasses import dataclass

from demo.corpus.types import Family, Problem, Style
from demo.corpus.wording import BADGE_LETTERS, CITIES, NAMES, Wording

_PLACES = ("harbour", "library", "museum", "factory", "hospital", "school", "station", "market")


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    badge: str
    city: str
    partner: str


@dataclass(frozen=True, slots=True)
class _Question:
    """A question about an entry, the quote of the finding in the response, and the value."""

    asked: str
    entry: _Entry
    quote: str
    value: str


def draw_badge(rng: random.Random) -> str:
    """Draw a badge such as `K704`: a letter and three digits."""
    return f"{rng.choice(BADGE_LETTERS)}{rng.randint(0, 999):03d}"


def lookup(rng: random.Random, num_entries: int, num_questions: int, style: Style) -> Problem:
    """Draw a paragraph of `num_entries` people and `num_questions` things to look up in it."""
    entries = _draw_entries(rng, num_entries)
    questions = [_draw_question(rng, entry, entries) for entry in rng.sample(entries, num_questions)]
    answer = ", ".join(question.value for question in questions)
    prompt = _describe(entries, questions, rng.choice(_PLACES), Wording(rng, Style()))
    response = f"{_report(questions, Wording(rng, style))} Answer: {answer}"
    content = " ".join(f"{e.name} {e.badge} {e.city} {e.partner}" for e in entries) + " : " + answer
    return Problem(Family.LOOKUP, prompt, response, answer, content)


def _draw_entries(rng: random.Random, num_entries: int) -> list[_Entry]:
    names = rng.sample(NAMES, num_entries)
    cities = rng.sample(CITIES, num_entries)
    ring = rng.sample(names, num_entries)
    partners = dict(zip(ring, [*ring[1:], ring[0]], strict=True))
    return [
        _Entry(name, draw_badge(rng), city, partners[name]) for name, city in zip(names, cities, strict=True)
    ]


def _draw_question(rng: random.Random, entry: _Entry, entries: list[_Entry]) -> _Question:
    kind = rng.choice(("badge", "badge", "city", "partner"))
    line = f"{entry.name} {entry.badge}"
    if kind == "badge":
        return _Question(f"the badge of {entry.name}", entry, line, entry.badge)
    if kind == "city":
        return _Question(f"the city of {entry.name}", entry, f"{line} from {entry.city}", entry.city)
    partner = next(other for other in entries if other.name == entry.partner)
    quote = f"{line} from {entry.city} with {partner.name}, and {partner.name} {partner.badge}"
    return _Question(f"the badge of the partner of {entry.name}", entry, quote, partner.badge)


def _describe(entries: list[_Entry], questions: list[_Question], place: str, wording: Wording) -> str:
    intro = wording.pick(
        (
            f"The {place} keeps a list of its people.",
            f"These people work at the {place}.",
            f"Here is who works at the {place}.",
        )
    )
    lines = [f"{e.name} {e.badge} from {e.city} with {e.partner}." for e in entries]
    asked = ", ".join(question.asked for question in questions)
    request = wording.pick(("Look up", "Find", "Report", "Tell me"))
    return " ".join([intro, *lines, f"{request} {asked}."])


def _report(questions: list[_Question], wording: Wording) -> str:
    sentences = []
    for question in questions:
        opener = wording.pick(("We look for", "The request wants", "It asks about", "Somebody needs"))
        joint = wording.pick(
            ("and the list says", "where we can read", "for which it shows", "so we note down")
        )
        sentences.append(f"{opener} {question.asked}, {joint} {question.quote}.")
    ending = wording.pick(("That is all we need.", "Everything has been found.", "Now the list is done."))
    return " ".join([*sentences, ending])
