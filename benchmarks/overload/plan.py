"""What is asked of the system, and for how long."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """An overload and what it is compared with.

    Attributes:
        places: Requests that decode at a time.
        queue: Requests that may wait.
        new_tokens: Of each response.
        forward_s: Of the simulated target, whatever its batch: it sets the capacity, not the processor.
        deadline_s: Of each request under overload.
        peak_s: How long the peak is measured, with a client for every place.
        overload_s: How long the overload lasts.
        factor: Requests per second of the overload, as a multiple of the peak's.
        ramp_s: Of the overload, left out of its throughput.
    """

    places: int = 16
    queue: int = 1024
    new_tokens: int = 16
    forward_s: float = 0.06
    deadline_s: float = 5.0
    peak_s: float = 15.0
    overload_s: float = 60.0
    factor: float = 4.0
    ramp_s: float = 3.0

    @property
    def simulated(self) -> str:
        """Parameters of the target's simulated model, as its flag takes them."""
        costs = f"base_s: {self.forward_s}, per_token_s: 0.0, per_token_above_s: 0.0"
        return f"{{vocab_size: 4096, response_tokens: [4000, 4000], {costs}}}"
