"""How a sub-drafter guesses: one engine per file behind one interface, and the factory."""

from services.sub_drafter.config import SubDrafterConfig
from services.sub_drafter.engines.base import GuessEngine
from services.sub_drafter.engines.ngram import NgramEngine
from services.sub_drafter.engines.suffix import SuffixEngine


def build_engine(config: SubDrafterConfig) -> GuessEngine:
    """The look-up engine that a configuration names; `model` is served by the drafter's own servicer."""
    if config.engine == "suffix":
        return SuffixEngine(config.memory_tokens)
    return NgramEngine(config.min_ngram, config.max_ngram)
