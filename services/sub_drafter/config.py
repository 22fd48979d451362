"""Configuration of one sub-drafter replica."""

from typing import Annotated

from pydantic import Field

from services.common.config import Config, OneOf
from services.common.security.config import SecurityConfig
from services.common.telemetry.config import TelemetryConfig
from services.sub_drafter.engines import ENGINES


class SubDrafterConfig(Config):
    """What a sub-drafter replica is and where it listens.

    Attributes:
        engine: `ngram` continues the latest earlier occurrence of the longest matching suffix; `suffix` goes
            by the statistics of all occurrences, in the sequence and in a memory of finished responses.
        response_cache_tokens: Tokens of finished responses that `suffix` remembers, over all cache salts.
        min_ngram: Shortest suffix that counts as a match, in tokens.
        max_ngram: Longest suffix that is looked up, in tokens.
        max_tokens: Longest sequence that one stream may hold.
        address: host:port; port 0 takes a free one.
        grace_s: How long running streams may go on when the replica is told to stop.
        security: How it protects what it serves.
        telemetry: What it tells of itself.
    """

    engine: Annotated[str, OneOf(ENGINES)] = "ngram"
    response_cache_tokens: int = Field(10_000_000, ge=1024, le=1 << 31)
    min_ngram: int = Field(2, ge=1, le=64)
    max_ngram: int = Field(5, ge=1, le=64)
    max_tokens: int = Field(1_048_576, ge=1)
    address: str = "127.0.0.1:0"
    grace_s: float = Field(10.0, ge=0)
    security: SecurityConfig = SecurityConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
