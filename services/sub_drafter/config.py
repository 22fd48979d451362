"""Configuration of one sub-drafter replica that looks tokens up."""

from typing import Annotated

from pydantic import Field

from fly.lookup.budget import IndexBudget
from services.common.config import Config, OneOf
from services.common.service_config import ServeSection
from services.sub_drafter.engines import ENGINES


class SubDrafterSection(Config):
    """Look-up of a sub-drafter replica."""

    engine: Annotated[str, OneOf(ENGINES)] = "ngram"
    """`ngram` continues the latest earlier occurrence of the longest matching suffix; `suffix` uses the
    statistics of all occurrences, in the sequence and in a cache of finished responses."""

    response_cache_tokens: int = Field(10_000_000, ge=1024, le=1 << 31)
    """Tokens of finished responses that one replica of engine `suffix` keeps, over all cache salts."""

    min_ngram: int = Field(2, ge=1, le=64)
    """Shortest suffix that counts as a match, in tokens, for engine `ngram`."""

    max_ngram: int = Field(5, ge=1, le=64)
    """Longest suffix that is looked up, in tokens, for engine `ngram`."""

    lookup_index_tokens: int = Field(IndexBudget().max_tokens, ge=0)
    """Tokens of long sequences that the look-up indexes of one replica hold, over all sequences, at about 40
    bytes each. Beyond them it looks up the latest tokens of a sequence only."""

    max_tokens: int = Field(1_048_576, ge=1, le=1 << 24)
    """Longest sequence of one stream, in tokens."""


class SubDrafterConfig(SubDrafterSection, ServeSection):
    """Everything that the process of a look-up sub-drafter replica is started with."""
