"""How metrics are declared: once, with their help and labels, in one place per role."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

Kind = Literal["counter", "gauge", "histogram"]
Read = Callable[[], Iterable[tuple[Sequence[str], float]]]
"""Values as they are now, each with the values of its labels."""

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Buckets of what takes a step's time."""

LONG_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0)
"""Buckets of what takes a request's time."""

TOKENS = (0, 1, 2, 3, 4, 6, 8, 10, 12, 15, 20, 25, 32, 48, 64)
"""Buckets of lengths of drafts."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric.

    Attributes:
        name: As it is exposed, without the suffixes of a histogram.
        help: What it says, in one sentence.
        labels: Their names.
        buckets: Upper bounds of a histogram.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


class Families:
    """Makes the metrics of one registry.

    Attributes:
        declared: All of them, in their order.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        # NOTE: of the whole process. When a series began is a series of its own: a third more for nobody.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.declared: list[Family] = []
        self._registry = registry

    def counter(self, name: str, help: str, *labels: str) -> Counter:
        self.declared.append(Family(name, "counter", help, labels))
        return Counter(name, help, labels, registry=self._registry)

    def gauge(self, name: str, help: str, *labels: str) -> Gauge:
        self.declared.append(Family(name, "gauge", help, labels))
        return Gauge(name, help, labels, registry=self._registry)

    def histogram(self, name: str, help: str, buckets: Sequence[float], *labels: str) -> Histogram:
        self.declared.append(Family(name, "histogram", help, labels, tuple(buckets)))
        return Histogram(name, help, labels, registry=self._registry, buckets=buckets)

    def read(self, kind: Literal["counter", "gauge"], name: str, help: str, read: Read, *labels: str) -> None:
        """A counter or gauge that is read when somebody scrapes; costs nothing before."""
        family = Family(name, kind, help, labels)
        self.declared.append(family)
        self._registry.register(_Read(family, read))


class _Read(Collector):
    def __init__(self, family: Family, read: Read) -> None:
        self._family = family
        self._read = read

    def describe(self) -> Iterator[Metric]:
        yield self._empty()

    def collect(self) -> Iterator[Metric]:
        metric = self._empty()
        for labels, value in self._read():
            metric.add_metric(labels, value)
        yield metric

    def _empty(self) -> CounterMetricFamily | GaugeMetricFamily:
        family = self._family
        kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
        return kind(family.name, family.help, labels=family.labels)
