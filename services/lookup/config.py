"""Configuration of one replica that looks tokens up: for drafters, or for the target."""

from typing import Literal

from pydantic import Field

from flyserve.core.messages import Role
from services.common.config import Config
from services.common.service_config import ServeSection
from services.lookup.index.budget import IndexBudget

SUFFIX = "suffix"
"""The look-up engine."""


class SuffixSection(Config):
    """Look-up of a replica of either tier."""

    engine: Literal["suffix"] = "suffix"
    """`suffix` uses the statistics of all occurrences, in the sequence and in earlier responses."""

    max_tokens: int = Field(1_048_576, ge=1, le=1 << 24)
    """Longest sequence of one stream at a look-up engine, in tokens."""

    response_cache_tokens: int = Field(10_000_000, ge=0, le=1 << 31)
    """Tokens of finished responses that one replica keeps, over all cache salts; 0 keeps none."""


class SuffixDraftSection(SuffixSection):
    """Look-up in the sequence itself, for drafts; a sub-drafter is asked for snippets only."""

    lookup_index_tokens: int = Field(IndexBudget().max_tokens, ge=0)
    """Tokens of long sequences that the look-up indexes of one replica hold, over all sequences, at about 50
    bytes each. Beyond them it looks up the latest tokens of a sequence only, and drafts nothing for responses
    with `reproducible_drafts`."""


class SuffixConfig(SuffixDraftSection, ServeSection):
    """Everything that the process of a look-up replica is started with."""

    role: Literal[Role.SUB_DRAFTER, Role.DRAFTER] = Role.SUB_DRAFTER
    """`sub_drafter` helps drafters; `drafter` drafts for the target itself."""

    max_draft: int = Field(1024, ge=1, le=2048)
    """Longest draft of one step, in tokens; a longer one is cut."""

    max_sequences: int = Field(0, ge=0, le=65_536)
    """Sequences that the replica holds at once; further ones are rejected. 0 is unlimited."""
