"""Metrics of look-up indexes, at a drafter and at a sub-drafter."""

from functools import partial

from prometheus_client import CollectorRegistry, Gauge

from flyserve.core.messages import Role
from services.lookup.index.budget import IndexBudget


def register_index_metrics(registry: CollectorRegistry, role: Role, budget: IndexBudget) -> None:
    """Register the tokens that look-up indexes hold, and their limit."""
    for name, text, field in (
        ("used", "Tokens of long sequences that the look-up indexes hold.", "num_tokens"),
        ("capacity", "Tokens of long sequences that the look-up indexes can hold.", "max_tokens"),
    ):
        gauge = Gauge(f"flyserve_lookup_index_{name}_tokens", text, ("role",), registry=registry)
        gauge.labels(role.value).set_function(partial(getattr, budget, field))
