"""The verdicts extension: how each token came to be, and when each round took place."""

from collections.abc import Sequence
from dataclasses import asdict

from router.codec.response import statistics_fields
from router.generation.response import Piece, ResponseToken
from router.http.objects import Extension, NamedToken, RoundObject, VerdictToken


def extension(pieces: Sequence[Piece]) -> Extension:
    """What these pieces of one choice tell; statistics and warnings where they reach its end."""
    tokens = [_token(token) for piece in pieces for token in piece.tokens]
    rounds = [RoundObject(**asdict(played)) for piece in pieces for played in piece.rounds]
    ending = pieces[-1].ending
    if ending is None:
        return Extension(tokens=tokens, rounds=rounds)
    statistics, warnings = statistics_fields(ending.statistics), list(ending.warnings)
    return Extension(tokens=tokens, rounds=rounds, statistics=statistics, warnings=warnings)


def _token(token: ResponseToken) -> VerdictToken:
    decided = token.decided
    differs = decided.choice != decided.token
    return VerdictToken(
        id=decided.token,
        text=token.text,
        verdict=decided.verdict.value,
        entropy=decided.entropy,
        choice=NamedToken(id=decided.choice, text=token.choice_text) if differs else None,
    )
