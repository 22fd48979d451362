"""Configuration of one replica that looks tokens up, by its engine: for drafters, or for the target."""

from typing import Literal

from pydantic import Field

from flyserve.core.messages import Role
from services.common.config import Config
from services.common.sections import Engines
from services.common.service_config import ServeSection
from services.lookup.index.budget import IndexBudget


class LookupSection(Config):
    """Look-up of a replica of either tier, with any engine."""

    max_tokens: int = Field(1_048_576, ge=1, le=1 << 24)
    """Longest sequence of one stream at a look-up engine, in tokens."""


class IndexSection(Config):
    """Look-up in the sequence itself, for drafts; a sub-drafter is asked for snippets only."""

    lookup_index_tokens: int = Field(IndexBudget().max_tokens, ge=0)
    """Tokens of long sequences that the look-up indexes of one replica hold, over all sequences, at about 50
    bytes each. Beyond them it looks up the latest tokens of a sequence only."""


class NgramSection(LookupSection):
    """Keys of the engine `ngram`."""

    engine: Literal["ngram"] = "ngram"
    """`ngram` continues the latest earlier occurrence of the longest matching suffix; `suffix` uses the
    statistics of all occurrences, in the sequence and in a cache of finished responses."""


class NgramDraftSection(NgramSection, IndexSection):
    """Keys of the engine `ngram` that drafts."""

    min_ngram: int = Field(2, ge=1, le=64)
    """Shortest suffix that counts as a match, in tokens."""

    max_ngram: int = Field(5, ge=1, le=64)
    """Longest suffix that is looked up, in tokens."""


class SuffixSection(LookupSection):
    """Keys of the engine `suffix`."""

    engine: Literal["suffix"] = "suffix"
    """`ngram` continues the latest earlier occurrence of the longest matching suffix; `suffix` uses the
    statistics of all occurrences, in the sequence and in a cache of finished responses."""

    response_cache_tokens: int = Field(10_000_000, ge=1024, le=1 << 31)
    """Tokens of finished responses that one replica keeps, over all cache salts."""


class SuffixDraftSection(SuffixSection, IndexSection):
    """Keys of the engine `suffix` that drafts."""


class LookupConfig(LookupSection, IndexSection, ServeSection):
    """Everything that the process of a look-up replica is started with, but for the keys of its engine."""

    role: Literal[Role.SUB_DRAFTER, Role.DRAFTER] = Role.SUB_DRAFTER
    """`sub_drafter` helps drafters; `drafter` drafts for the target itself."""

    max_draft: int = Field(1024, ge=1, le=2048)
    """Longest draft of one step, in tokens; a longer one is cut."""

    max_sequences: int = Field(0, ge=0, le=65_536)
    """Sequences that the replica holds at once; further ones are rejected. 0 is unlimited."""


class NgramConfig(NgramDraftSection, LookupConfig):
    """Everything that the process of a replica with the engine `ngram` is started with."""


class SuffixConfig(SuffixDraftSection, LookupConfig):
    """Everything that the process of a replica with the engine `suffix` is started with."""


AnyLookupConfig = NgramConfig | SuffixConfig
LOOKUPS: Engines[AnyLookupConfig] = Engines(NgramConfig, SuffixConfig)
