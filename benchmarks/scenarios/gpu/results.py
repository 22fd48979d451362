"""The results of a measurement on a GPU. Pure."""

from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.scenarios.gpu.plan import Case


@dataclass(frozen=True, slots=True)
class Device:
    """A device and its limits.

    Attributes:
        name: A sentence about the GPU and the libraries that compute on it; "" on a CPU.
        read_bytes_per_s: Bytes of weights read per second by large matrix-vector products.
        flops: Operations per second of a large bfloat16 product.
    """

    name: str
    read_bytes_per_s: float
    flops: float

    def forward_s(self, weight_bytes: int, kv_bytes: int, num_rows: int) -> float:
        """Return the least time of a forward in bfloat16, by memory or by arithmetic.

        Args:
            weight_bytes: Weights, each of which is read once and multiplied with every row.
            kv_bytes: Keys and values that are read, of all sequences.
            num_rows: Rows of all sequences.
        """
        by_memory = (weight_bytes + kv_bytes) / self.read_bytes_per_s
        return max(by_memory, weight_bytes * num_rows / self.flops)


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


class ForwardTime(NamedTuple):
    """The median times of one case of one model, with the head.

    Attributes:
        weight_bytes: Weights that a forward reads.
        kv_bytes: Keys and values that its attention reads.
        torch_s: A forward.
        start_s: Time of the host until all work of that forward has been handed to the device, without head.
    """

    model: str
    case: Case
    weight_bytes: int
    kv_bytes: int
    torch_s: float
    start_s: float
