"""The look-up engines of a sub-drafter by name: one file each, behind one interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from services.sub_drafter.engines.base import ProposalEngine
from services.sub_drafter.engines.ngram import NgramEngine
from services.sub_drafter.engines.suffix import SuffixEngine

if TYPE_CHECKING:
    from services.sub_drafter.config import SubDrafterConfig

ENGINES: dict[str, Callable[[SubDrafterConfig], ProposalEngine]] = {
    "ngram": lambda config: NgramEngine(config.min_ngram, config.max_ngram),
    "suffix": lambda config: SuffixEngine(config.response_cache_tokens),
}
"""Every look-up engine; configuration, deployment files and the chart accept these names. (The engine `model`
of a deployment file is the drafter's own service with a smaller model.)"""


def build_engine(config: SubDrafterConfig) -> ProposalEngine:
    """Return a new engine of the kind that the configuration names."""
    return ENGINES[config.engine](config)
