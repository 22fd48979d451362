"""The look-up engines of a sub-drafter by name: one file each, behind one interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fly.lookup.budget import IndexBudget
from services.sub_drafter.engines.base import ProposalEngine
from services.sub_drafter.engines.ngram import NgramEngine
from services.sub_drafter.engines.suffix import SuffixEngine

if TYPE_CHECKING:
    from services.sub_drafter.config import SubDrafterConfig

ENGINES: dict[str, Callable[[SubDrafterConfig, IndexBudget], ProposalEngine]] = {
    "ngram": lambda config, budget: NgramEngine(config.min_ngram, config.max_ngram, budget),
    "suffix": lambda config, budget: SuffixEngine(config.response_cache_tokens, budget),
}
"""Every look-up engine; configuration, deployment files and the chart accept these names. (The engine `model`
of a deployment file is the drafter's own service with a smaller model.)"""


def build_engine(config: SubDrafterConfig, budget: IndexBudget) -> ProposalEngine:
    """Return a new engine of the kind that the configuration names; its indexes share the budget."""
    return ENGINES[config.engine](config, budget)
