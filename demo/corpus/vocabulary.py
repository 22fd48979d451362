"""The words that carry content: names, things, cities and the letters of badges and variables."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES = _words(
    "Ada Ben Cleo Dina Emil Faye Gus Hana Ivan June Kira Liam Mila Noor Otto Pia Quinn Rosa Sven Tara "
    "Umar Vera Wim Xena Yuri Zoe Alma Boris Clara Dario Elsa Felix Greta Hugo Ines Jonas Karl Lena Marco Nina"
)
THINGS = _words(
    "marbles stamps apples coins shells books pencils cards pears beads buttons stickers seeds candles plums "
    "tickets stones cookies ribbons badges"
)
CONTAINERS = _words("bags boxes packs jars")
CITIES = _words(
    "Oslo Rome Lima Cairo Paris Delhi Tokyo Quito Accra Bern Porto Dakar Turin Sofia Malmo Leeds Kyoto Perth "
    "Austin Havana"
)
BADGE_LETTERS = "BCDFGHJKLMNPRSTVWXZ"
VARIABLES = "abcdefghkmnpqrstuvwxyz"
