"""The cost of a forward on a GPU by its roofline: the parameters of the simulated models. Pure."""

from dataclasses import dataclass, replace

from services.engine.simulation.language import SimulatedConfig

_BYTES = 2
"""Bytes of a weight or a KV entry in bfloat16."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One accelerator, and the shares of its limits that a well-tuned engine reaches.

    Attributes:
        memory: Memory in bytes.
        bandwidth: Bytes per second of its memory by the data sheet.
        flops: Dense bfloat16 operations per second by the data sheet.
        bandwidth_share: Share of the bandwidth that forwards of few rows reach.
        flops_share: Share of the operations that forwards of many rows reach.
        memory_share: Share of the memory for weights and KV; activations, graphs and fragments take the rest.
        launch_s: Time to launch a forward of any size (one captured graph).
        all_reduce_s: Time of one small all-reduce in a node; a shared model needs two per layer.
    """

    name: str
    memory: float
    bandwidth: float
    flops: float
    bandwidth_share: float
    flops_share: float
    memory_share: float
    launch_s: float
    all_reduce_s: float


@dataclass(frozen=True, slots=True)
class Transformer:
    """Sizes of a model with grouped-query attention."""

    name: str
    parameters: float
    layers: int
    kv_heads: int
    head_size: int

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights."""
        return self.parameters * _BYTES

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV of one token."""
        return 2 * self.layers * self.kv_heads * self.head_size * _BYTES

    @property
    def row_flops(self) -> float:
        """Operations of one token row, without attention over the context."""
        return 2 * self.parameters


H200 = Gpu("H200 SXM", 141e9, 4.8e12, 989e12, 0.75, 0.6, 0.9, 0.3e-3, 10e-6)
LLAMA_70B = Transformer("Llama 3.3 70B", 70.6e9, 80, 8, 128)
LLAMA_8B = Transformer("Llama 3.1 8B", 8.03e9, 32, 8, 128)


@dataclass(frozen=True, slots=True)
class Replica:
    """A model on several GPUs of one node.

    Attributes:
        context_tokens: Mean context of a sequence; each of its forwards reads this KV.
    """

    model: Transformer
    gpu: Gpu
    num_gpus: int
    context_tokens: int

    @property
    def base_s(self) -> float:
        """Time of a forward of few rows: it reads every weight once, with two all-reduces per layer."""
        gpu, reduces = self.gpu, 2 * self.model.layers if self.num_gpus > 1 else 0
        return self.model.weight_bytes / self._bandwidth + gpu.launch_s + reduces * gpu.all_reduce_s

    @property
    def row_s(self) -> float:
        """Time of a token row in a forward that is bound by compute."""
        return self.model.row_flops / (self.num_gpus * self.gpu.flops * self.gpu.flops_share)

    @property
    def knee_rows(self) -> int:
        """Rows whose compute takes as long as reading the weights; fewer rows cost nothing more."""
        return int(self.model.weight_bytes / self._bandwidth / self.row_s)

    @property
    def sequence_s(self) -> float:
        """Time to read the KV of one sequence."""
        return self.context_tokens * self.model.kv_bytes / self._bandwidth

    @property
    def kv_tokens(self) -> int:
        """KV positions that fit next to the weights."""
        room = self.num_gpus * self.gpu.memory * self.gpu.memory_share - self.model.weight_bytes
        return int(room / self.model.kv_bytes)

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
        return self.num_gpus * self.gpu.bandwidth * self.gpu.bandwidth_share
