"""What is asked of the system, and for how long."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Plan:
    """A warm-up, a rest, the load, a rest.

    Attributes:
        warm_up_s: Of the same load, before the first rest: caches fill, threads and connections come to be.
        load_s: How long the load lasts.
        clients: That ask for one response after the other.
        think_s: Longest pause of a client between two of them.
        sample_s: Between two looks at every process.
        rest_s: Within which everything must come to rest once the load has ended.
        replace_s: How often a target is killed and restarted; 0 never does.
        vanish_s: How often a process that has streams open is killed.
        write_timeout_s: After which the router gives a client up that takes nothing.
        seed: Of what the clients ask.
    """

    warm_up_s: float = 600.0
    load_s: float = 1800.0
    clients: int = 24
    think_s: float = 1.0
    sample_s: float = 5.0
    rest_s: float = 30.0
    replace_s: float = 300.0
    vanish_s: float = 20.0
    write_timeout_s: float = 2.0
    seed: int = 0

    def quick(self) -> "Plan":
        """It works; the figures mean little."""
        return replace(self, warm_up_s=4.0, load_s=10.0, sample_s=0.5, replace_s=4.0, vanish_s=3.0)
