"""Memory of the tiers on a CPU: weights, and as many KV positions as fit beside them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from flyserve.core.blocks import BLOCK_TOKENS
from flyserve.core.errors import ConfigError
from flyserve.core.messages import Role
from services.common.machine.machine import Machine

_LEAST_KV_TOKENS = 4096
"""KV positions below which a tier is not started by default: a few conversations, or one long prompt."""
_PROCESS_BYTES = 512 << 20
"""Memory of a process that computes a model, whatever the model: Python, torch and its threads."""
_LOGIT_BYTES = 8
"""Bytes of a logit in float32, and as many for the rows that lead to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """The memory of one tier, all its replicas together.

    Attributes:
        weight_bytes: Weights as they are computed; 0 if unknown.
        position_bytes: Keys and values of one position; 0 if unknown.
        working_bytes: All that its processes take beside weights, keys and values.
        kv_tokens: Positions; 0 if another engine sizes its memory by itself.
        is_fixed: They are set, so that they cannot be lowered.
    """

    role: Role
    model: str
    weight_bytes: int
    position_bytes: int
    working_bytes: int
    kv_tokens: int
    is_fixed: bool

    def describe(self) -> str:
        """Return the parts of its least memory, for messages."""
        kv = f" and KV memory {_gb(self.kv_bytes)} (kv_tokens {self.least})" if self.kv_bytes else ""
        return f"{self.role}.model {self.model} {_gb(self.weight_bytes)}{kv}"

    @property
    def least(self) -> int:
        """The fewest positions."""
        return self.kv_tokens if self.is_fixed else min(self.kv_tokens, _LEAST_KV_TOKENS)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the fewest positions."""
        return self.least * self.position_bytes


def fitting_kv_tokens(uses: Sequence[MemoryUse], machine: Machine) -> dict[Role, int]:
    """Return the KV positions of the tiers whose number is not set, where it does not fit.

    KV memory is filled as sequences need it, so a number that is too large ends a replica later, under load.

    Raises:
        ConfigError: Not even the fewest positions fit beside the weights.
    """
    room = machine.memory_bytes - sum(use.weight_bytes for use in uses)
    if not machine.memory_bytes:
        return {}
    if sum(use.kv_bytes for use in uses) > room:
        raise ConfigError(_no_room(uses, machine))
    open_uses = [use for use in uses if use.kv_tokens and not use.is_fixed]
    room -= sum(use.kv_bytes for use in uses if use.is_fixed) + sum(use.working_bytes for use in uses)
    per_position = sum(use.position_bytes for use in open_uses)
    if not per_position:
        return {}
    most = room // per_position // BLOCK_TOKENS * BLOCK_TOKENS
    return {use.role: max(most, use.least) for use in open_uses if most < use.kv_tokens}


def working_bytes(logit_rows: int, vocab_size: int) -> int:
    """Return the memory that a process takes beside weights, keys and values; so many rows have logits."""
    return _PROCESS_BYTES + logit_rows * vocab_size * _LOGIT_BYTES


def _no_room(uses: Sequence[MemoryUse], machine: Machine) -> str:
    total = sum(use.weight_bytes + use.kv_bytes for use in uses)
    limit = machine.memory_limit
    within = "" if limit is None else f", within the limit of {_gb(limit)} of this container"
    kv = " and KV memory" if any(use.kv_bytes for use in uses) else ""
    lower = "lower kv_tokens, " if any(use.is_fixed and use.kv_bytes for use in uses) else ""
    return (
        f"the weights{kv} take {_gb(total)} of memory ({', '.join(use.describe() for use in uses)}),"
        f" but {_gb(machine.memory_bytes)} are available{within}: {lower}use a smaller model,"
        " quantization: int8, fewer replicas, GPUs, or more memory"
    )


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
