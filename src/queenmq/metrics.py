"""Figures that the server keeps about itself: plain counters and histograms, read out for Prometheus.

Counting is one addition; nothing here formats, locks or waits until somebody reads. Invariant: a counter only grows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass
class Histogram:
    """Cumulative buckets in seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """As Prometheus wants them."""
        found, seen = [], 0
        for bound, count in zip((*SECONDS, float("inf")), self.counts, strict=True):
            seen += count
            found.append(("+Inf" if bound == float("inf") else repr(bound), float(seen)))
        return found


@dataclass
class LaneMetrics:
    """One lane's figures."""

    calls: int = 0
    items: int = 0
    refused: int = 0
    busy: int = 0
    set_aside: int = 0
    seconds: Histogram = field(default_factory=Histogram)
    lock_wait: Histogram = field(default_factory=Histogram)

    def call(self, seconds: float, items: int) -> None:
        self.calls += 1
        self.items += items
        self.seconds.observe(seconds)

    def waited(self, seconds: float) -> None:
        self.lock_wait.observe(seconds)


@dataclass(eq=False)
class Metrics:
    """All of one server's figures."""

    lanes: dict[str, LaneMetrics] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)
    claim_empty: int = 0
    data_loss_warnings: int = 0
    stale_lookups: int = 0
    trigger_errors: int = 0

    def lane(self, name: str) -> LaneMetrics:
        return self.lanes.setdefault(name, LaneMetrics())

    def count(self, name: str, by: int = 1) -> None:
        self.counters[name] = self.counters.get(name, 0) + by

    def collect(self) -> Iterator[Metric]:
        """For a Prometheus registry."""
        calls = CounterMetricFamily("queen_calls", "Calls to the database.", labels=["kind"])
        items = CounterMetricFamily("queen_items", "Items that those calls carried.", labels=["kind"])
        refused = CounterMetricFamily("queen_refused", "Requests refused because too much was waiting.", labels=["kind"])
        busy = CounterMetricFamily("queen_busy", "Calls that met a row that somebody holds.", labels=["kind"])
        aside = CounterMetricFamily("queen_set_aside", "Units set aside behind a held row.", labels=["kind"])
        seconds = HistogramMetricFamily("queen_call_seconds", "How long a call took (kind=pop: claim latency).", labels=["kind"])
        waits = HistogramMetricFamily("queen_lookup_lock_wait_seconds", "How long a set-aside round waited for rows.", labels=["kind"])
        for kind, lane in self.lanes.items():
            calls.add_metric([kind], lane.calls)
            items.add_metric([kind], lane.items)
            refused.add_metric([kind], lane.refused)
            busy.add_metric([kind], lane.busy)
            aside.add_metric([kind], lane.set_aside)
            seconds.add_metric([kind], lane.seconds.buckets(), lane.seconds.total)
            waits.add_metric([kind], lane.lock_wait.buckets(), lane.lock_wait.total)
        yield from (calls, items, refused, busy, aside, seconds, waits)
        yield CounterMetricFamily("queen_claims_empty", "Claims that found nothing.", self.claim_empty)
        yield CounterMetricFamily("queen_data_loss_warnings", "Gaps in seq that no removal explains.", self.data_loss_warnings)
        yield CounterMetricFamily("queen_stale_lookups", "Counter rows found behind their messages by resync.", self.stale_lookups)
        yield CounterMetricFamily("queen_trigger_errors", "Errors of the triggers on messages seen by this server.", self.trigger_errors)
        for name, number in self.counters.items():
            yield CounterMetricFamily(f"queen_{name}", f"{name.replace('_', ' ').capitalize()}.", number)
        for name, value in self.gauges.items():
            yield GaugeMetricFamily(f"queen_{name}", f"{name.replace('_', ' ').capitalize()}.", value)
