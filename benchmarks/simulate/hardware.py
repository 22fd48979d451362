"""What a forward costs on a GPU, by its roofline: the parameters of the simulated models. Pure."""

from dataclasses import dataclass, replace

from services.engine.simulation.language import SimulatedConfig

_BYTES = 2
"""Of a weight or a KV entry in bfloat16."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One accelerator, and what of it a well-tuned engine reaches.

    Attributes:
        memory: Bytes.
        bandwidth: Bytes per second that its memory gives by its data sheet.
        flops: Dense bfloat16 operations per second by its data sheet.
        bandwidth_share: Of the bandwidth, in forwards of few rows.
        flops_share: Of the operations, in forwards of many.
        memory_share: Of the memory, for weights and KV; the rest is for activations, graphs and fragments.
        launch_s: Of a forward, whatever it computes (one captured graph).
        all_reduce_s: Of one small all-reduce between GPUs of a node; two in every layer of a shared model.
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
        return self.parameters * _BYTES

    @property
    def kv_bytes(self) -> int:
        """Of one token."""
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
    """A model on so many GPUs of one node.

    Attributes:
        context_tokens: Of a sequence, on the average: its KV is read by every forward that it is in.
    """

    model: Transformer
    gpu: Gpu
    num_gpus: int
    context_tokens: int

    @property
    def base_s(self) -> float:
        """A forward of few rows reads every weight once; its GPUs talk to each other twice a layer."""
        gpu, reduces = self.gpu, 2 * self.model.layers if self.num_gpus > 1 else 0
        return self.model.weight_bytes / self._bandwidth + gpu.launch_s + reduces * gpu.all_reduce_s

    @property
    def row_s(self) -> float:
        """A token row, where a forward is bound by compute."""
        return self.model.row_flops / (self.num_gpus * self.gpu.flops * self.gpu.flops_share)

    @property
    def knee_rows(self) -> int:
        """Rows whose compute takes as long as reading the weights; fewer cost nothing more."""
        return int(self.model.weight_bytes / self._bandwidth / self.row_s)

    @property
    def sequence_s(self) -> float:
        """To read the KV of one sequence."""
        return self.context_tokens * self.model.kv_bytes / self._bandwidth

    @property
    def kv_tokens(self) -> int:
        """Positions that fit beside the weights."""
        room = self.num_gpus * self.gpu.memory * self.gpu.memory_share - self.model.weight_bytes
        return int(room / self.model.kv_bytes)

    def simulated(self, language: SimulatedConfig) -> SimulatedConfig:
        """A simulated model of this language, with these costs."""
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
