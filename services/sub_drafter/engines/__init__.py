"""The look-up engines by name: one file each, behind one interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fly.lookup.budget import IndexBudget
from fly.lookup.suffix import FOR_TARGET, SuffixRule
from fly.messages import Role
from services.sub_drafter.engines.base import ProposalEngine
from services.sub_drafter.engines.ngram import NgramEngine
from services.sub_drafter.engines.suffix import SuffixEngine

if TYPE_CHECKING:
    from services.sub_drafter.config import SubDrafterConfig

ENGINES: dict[str, Callable[[SubDrafterConfig, IndexBudget], ProposalEngine]] = {
    "ngram": lambda config, budget: NgramEngine(
        config.min_ngram, config.max_ngram, budget, for_target=config.role is Role.DRAFTER
    ),
    "suffix": lambda config, budget: SuffixEngine(
        config.response_cache_tokens, budget, FOR_TARGET if config.role is Role.DRAFTER else SuffixRule()
    ),
}
"""Every look-up engine; configuration, deployment files and the chart accept these names, for drafters and
sub-drafters."""


def build_engine(config: SubDrafterConfig, budget: IndexBudget) -> ProposalEngine:
    """Return a new engine of the kind that the configuration names; its indexes share the budget."""
    return ENGINES[config.engine](config, budget)
