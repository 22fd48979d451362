"""How a sub-drafter proposals: one engine per file behind one interface, and the factory."""

from services.sub_drafter.config import SubDrafterConfig
from services.sub_drafter.engines.base import ProposalEngine
from services.sub_drafter.engines.ngram import NgramEngine
from services.sub_drafter.engines.suffix import SuffixEngine


def build_engine(config: SubDrafterConfig) -> ProposalEngine:
    """The look-up engine that a configuration names; `model` is served by the drafter's own servicer."""
    if config.engine == "suffix":
        return SuffixEngine(config.response_cache_tokens)
    return NgramEngine(config.min_ngram, config.max_ngram)
