"""The results of a measurement on a GPU. Pure."""

from dataclasses import dataclass

from benchmarks.scenarios.gpu.plan import Case


@dataclass(frozen=True, slots=True)
class Limits:
    """What a device can do.

    Attributes:
        read_bytes_per_s: Bytes of weights read per second by large matrix-vector products.
        copy_bytes_per_s: Bytes read and written per second by a large copy.
        flops: Operations per second of a large bfloat16 product.
        operator_s: Time of the host to start one small operator.
        linear_bytes_per_s: Bytes of weights read per second by a linear layer, by the number of rows.
    """

    read_bytes_per_s: float
    copy_bytes_per_s: float
    flops: float
    operator_s: float
    linear_bytes_per_s: dict[int, float]

    @property
    def bytes_per_s(self) -> float:
        """The better of both rates of memory."""
        return max(self.read_bytes_per_s, self.copy_bytes_per_s)

    def forward_s(self, weight_bytes: int, kv_bytes: int, num_rows: int) -> float:
        """Return the least time of a forward in bfloat16, by memory or by arithmetic.

        Args:
            weight_bytes: Weights, each of which is read once and multiplied with every row.
            kv_bytes: Keys and values that are read, of all sequences.
            num_rows: Rows of all sequences.
        """
        return max((weight_bytes + kv_bytes) / self.bytes_per_s, weight_bytes * num_rows / self.flops)


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """A GPU and the libraries that compute on it; versions as text."""

    name: str
    memory_bytes: int
    multiprocessors: int
    driver: str
    cuda: str
    cudnn: str
    nccl: str

    def describe(self) -> str:
        """Return one sentence for the report."""
        return (
            f"{self.name}, {self.memory_bytes / 1e9:.0f} GB, {self.multiprocessors} multiprocessors; driver"
            f" {self.driver}, CUDA {self.cuda}, cuDNN {self.cudnn}, NCCL {self.nccl}."
        )


@dataclass(frozen=True, slots=True)
class AttentionCost:
    """Attention of one layer of 8B over a sequence.

    Attributes:
        rows: New rows of the sequence.
        cudnn: cuDNN's kernels are allowed; None on a CPU, which has none.
        new_length_s: Median time at lengths that come for the first time, as at every step of decoding.
        same_length_s: Median time at a length that came before.
    """

    rows: int
    cudnn: bool | None
    new_length_s: float
    same_length_s: float


@dataclass(frozen=True, slots=True)
class Probe:
    """The facts of a machine.

    Attributes:
        gpu: None if the measurement runs on a CPU.
    """

    gpu: GpuFacts | None
    attention: list[AttentionCost]


@dataclass(frozen=True, slots=True)
class Exactness:
    """One forward of the engine in one type, next to transformers.

    Attributes:
        forward: Kind of forward, as the engine describes it.
        prompts: Number of prompts.
        equal: Number of responses that are those of transformers.
        differences: Place of the first difference of each other response, and how clear the choice was.
        batched_equal: The engine gives the same tokens if it decodes all prompts together.
        verified_equal: Share of positions at which a verification of 16 rows chooses what one row chose.
    """

    forward: str
    dtype: str
    prompts: int
    equal: int
    differences: list[str]
    batched_equal: bool
    verified_equal: float

    @property
    def is_equal(self) -> bool:
        """True if nothing differs."""
        return self.equal == self.prompts and self.batched_equal and self.verified_equal == 1.0


@dataclass(frozen=True, slots=True)
class ForwardTime:
    """The median times of one case.

    Attributes:
        kv_bytes: Keys and values that its attention reads.
        forward_s: A forward with its head.
        start_s: Time of the host until all work of the forward has been handed to the device, without head.
        head_s: The head alone.
    """

    case: Case
    kv_bytes: int
    forward_s: float
    start_s: float
    head_s: float


@dataclass(frozen=True, slots=True)
class ForwardTimes:
    """The forwards of one model.

    Attributes:
        model: Name with the number of parameters.
        forward: Kind of forward, as the engine describes it.
        weight_bytes: Weights that a forward reads.
        load_s: Time until the runner was ready.
        memory_bytes: Most memory of the GPU in use so far; None on a CPU.
        growing_s: Time of a step while one sequence grows, so that every step has a length that is new.
    """

    model: str
    forward: str
    weight_bytes: int
    load_s: float
    memory_bytes: int | None
    growing_s: float
    times: list[ForwardTime]


@dataclass(frozen=True, slots=True)
class KernelTime:
    """The median times of a forward with its head, by torch alone and by the kernels."""

    case: Case
    torch_s: float
    kernels_s: float


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """The forwards of one model."""

    model: str
    times: list[KernelTime]


@dataclass(frozen=True, slots=True)
class Turn:
    """Requests that were sent at once, with the same way of decoding.

    Attributes:
        seconds: Time from the first request to the last response.
        tokens: Tokens of each response.
        tau: Tokens emitted in rounds with a draft, per such round; 0 without one.
        verify_s: Mean time of a verification.
        draft_s: Mean time of a forward of the drafter.
        wire_s: Mean time of a round on the wire and in queues.
    """

    seconds: float
    tokens: list[list[int]]
    tau: float
    verify_s: float
    draft_s: float
    wire_s: float

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of all requests together."""
        return sum(map(len, self.tokens)) / self.seconds


@dataclass(frozen=True, slots=True)
class Served:
    """The turns of every way of decoding with a number of concurrent requests."""

    streams: int
    turns: dict[str, list[Turn]]
