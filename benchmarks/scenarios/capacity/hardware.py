"""The cost of a forward on H200s by its roofline: the parameters of the simulated models. Pure."""

from dataclasses import dataclass, replace

from services.engine.simulation.language import SimulatedConfig

MEMORY, BANDWIDTH, FLOPS = 141e9, 4.8e12, 989e12
"""Bytes, bytes per second and dense bfloat16 operations per second of an H200 SXM, by its data sheet."""
BANDWIDTH_SHARE, FLOPS_SHARE, MEMORY_SHARE = 0.75, 0.6, 0.9
"""Shares that a well-tuned engine reaches; activations, graphs and fragments take the rest of the memory."""
LAUNCH_S, ALL_REDUCE_S = 0.3e-3, 10e-6
"""Time to launch a forward of any size (one captured graph), and of one small all-reduce in a node."""
_BYTES, _KV_HEADS, _HEAD_SIZE = 2, 8, 128
"""Bytes of a weight or a KV entry in bfloat16; both models have the same heads."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A model on several GPUs of one node.

    Attributes:
        context_tokens: Mean context of a sequence; each of its forwards reads this KV.
        bandwidth_share: Share of the bandwidth that forwards of few rows reach.
    """

    name: str
    parameters: float
    layers: int
    num_gpus: int
    context_tokens: int
    bandwidth_share: float = BANDWIDTH_SHARE

    @property
    def weights_s(self) -> float:
        """Time to read every weight once."""
        return self.parameters * _BYTES / self._bandwidth

    @property
    def base_s(self) -> float:
        """Time of a forward of few rows: it reads every weight once, with two all-reduces per layer."""
        reduces = 2 * self.layers if self.num_gpus > 1 else 0
        return self.weights_s + LAUNCH_S + reduces * ALL_REDUCE_S

    @property
    def row_s(self) -> float:
        """Time of a token row in a forward that is bound by compute, without attention over the context."""
        return 2 * self.parameters / (self.num_gpus * FLOPS * FLOPS_SHARE)

    @property
    def knee_rows(self) -> int:
        """Rows whose compute takes as long as reading the weights; fewer rows cost nothing more."""
        return int(self.weights_s / self.row_s)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV of one token."""
        return 2 * self.layers * _KV_HEADS * _HEAD_SIZE * _BYTES

    @property
    def sequence_s(self) -> float:
        """Time to read the KV of one sequence."""
        return self.context_tokens * self.kv_bytes / self._bandwidth

    @property
    def kv_tokens(self) -> int:
        """KV positions that fit next to the weights."""
        return int((self.num_gpus * MEMORY * MEMORY_SHARE - self.parameters * _BYTES) / self.kv_bytes)

    def simulated(self, language: SimulatedConfig) -> SimulatedConfig:
        """Return a simulated model of this language with these costs."""
        return replace(
            language,
            base_s=self.base_s,
            per_token_s=0.0,
            knee_tokens=self.knee_rows,
            per_token_above_s=self.row_s,
            per_sequence_s=self.sequence_s,
        )

    @property
    def _bandwidth(self) -> float:
        return self.num_gpus * BANDWIDTH * self.bandwidth_share
