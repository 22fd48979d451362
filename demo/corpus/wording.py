"""The words that carry content, and free wording: a seeded choice among equally good phrases."""

import random
import zlib
from collections.abc import Sequence

from demo.corpus.types import Style


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


# The favourite is clear enough to be learned, and the rest likely enough for 1.0 nats over the top three.
_WEIGHTS = {2: (0.56, 0.44), 3: (0.42, 0.32, 0.26), 4: (0.37, 0.25, 0.2, 0.18)}


class Wording:
    """Picks phrases at random; the phrases on offer identify the choice, so it needs no name."""

    def __init__(self, rng: random.Random, style: Style) -> None:
        self._rng = rng
        self._style = style

    def pick(self, options: Sequence[str]) -> str:
        """Draw one of two to four phrases."""
        weights = _WEIGHTS[len(options)]
        favourite = self._favourite(options)
        order = [*options[favourite:], *options[:favourite]]
        return self._rng.choices(order, weights)[0]

    def _favourite(self, options: Sequence[str]) -> int:
        digest = zlib.crc32("|".join(options).encode())
        is_shifted = (digest >> 8) % 1000 < self._style.shift * 1000
        return (digest + is_shifted) % len(options)
