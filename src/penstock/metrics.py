"""Prometheus metrics of an open system: a collector for any registry, and a page of them on a port.

What is shown is read when it is asked for, from wherever the queues live: an attached process shows the
numbers of the store's owner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from penstock.backends.base import BackendMetrics, HealthNumbers, Histogram, QueueMetrics
from penstock.errors import PenstockError
from penstock.message import STORED_STATES
from penstock.penstock import Penstock
from penstock.version import __version__

#: name -> (kind, labels, what it tells). docs/metrics.md has the same table.
TABLE: dict[str, tuple[str, tuple[str, ...], str]] = {
    "penstock": ("info", ("version",), "What is running."),
    "penstock_backend": ("info", ("backend", "engine", "durability"), "Each backend."),
    "penstock_healthy": ("gauge", ("backend",), "1 healthy, 0.5 degraded, 0 unhealthy."),
    "penstock_backend_up": ("gauge", ("backend",), "1 if it answers, 0 if not."),
    "penstock_backend_latency_seconds": (
        "gauge",
        ("backend", "quantile"),
        "Time of a call, over the last minute or two; quantiles 0.5 and 0.99.",
    ),
    "penstock_backend_error_ratio": ("gauge", ("backend",), "The part of calls that failed, likewise."),
    "penstock_backend_memory_bytes": (
        "gauge",
        ("backend",),
        "Memory of the server, or of the process that owns the store.",
    ),
    "penstock_backend_memory_limit_bytes": ("gauge", ("backend",), "What a server may have of it."),
    "penstock_backend_pool_in_use": ("gauge", ("backend",), "Connections of this process in use."),
    "penstock_backend_pool_size": ("gauge", ("backend",), "Connections that it may have."),
    "penstock_backend_stream_length": ("gauge", ("backend",), "Entries of streams, where there are any."),
    "penstock_backend_consumer_lag": (
        "gauge",
        ("backend",),
        "Entries that the required cursor, or group, which is furthest behind has not read.",
    ),
    "penstock_backend_shards": ("gauge", ("backend",), "Servers of a cluster that have keys."),
    "penstock_messages": ("gauge", ("backend", "queue", "state"), "Messages by state."),
    "penstock_oldest_ready_age_seconds": (
        "gauge",
        ("backend", "queue"),
        "How long the oldest ready message has been ready; 0 if there is none.",
    ),
    "penstock_enqueued": ("counter", ("backend", "queue"), "Messages enqueued, ever."),
    "penstock_acked": ("counter", ("backend", "queue"), "Messages acked, ever."),
    "penstock_failed": ("counter", ("backend", "queue"), "Deliveries that failed, ever."),
    "penstock_events": (
        "counter",
        ("backend", "queue", "kind"),
        "Journal events since the store was opened; kind released is a lease that ran out.",
    ),
    "penstock_rate_per_second": (
        "gauge",
        ("backend", "queue", "operation"),
        "Enqueues, acks and failures over the last minute.",
    ),
    "penstock_wait_seconds": (
        "histogram",
        ("backend", "queue"),
        "From the moment a message became visible until it was leased, since the store was opened.",
    ),
    "penstock_service_seconds": (
        "histogram",
        ("backend", "queue"),
        "From a lease to its ack, since the store was opened.",
    ),
    "penstock_journal_bytes": ("gauge", ("backend", "queue"), "Size of the journal."),
    "penstock_journal_last_seq": ("gauge", ("backend", "queue"), "Number of the latest event."),
    "penstock_cursor_lag_events": (
        "gauge",
        ("backend", "queue", "cursor", "required"),
        "Events that a cursor has not read.",
    ),
    "penstock_held_bodies": (
        "gauge",
        ("backend", "queue"),
        "Bodies kept because a required cursor has not read so far.",
    ),
    "penstock_key_ready": (
        "gauge",
        ("backend", "queue", "key"),
        "Ready messages of the fairness keys that have most, up to 20 of a queue.",
    ),
    "penstock_key_oldest_ready_age_seconds": (
        "gauge",
        ("backend", "queue", "key"),
        "The same for the age of their oldest.",
    ),
    "penstock_key_served": (
        "counter",
        ("backend", "queue", "key"),
        "The same for their deliveries since the store was opened; a key that was idle may start anew.",
    ),
    "penstock_key_throttled": (
        "gauge",
        ("backend", "queue", "key"),
        "The same for their ready messages that wait for tokens.",
    ),
    "penstock_throttle_tokens": (
        "gauge",
        ("backend", "throttle"),
        "Deliveries that are left of a limit just now; the first 100 limits.",
    ),
    "penstock_throttle_rate_per_second": ("gauge", ("backend", "throttle"), "Deliveries a second."),
    "penstock_throttle_burst": ("gauge", ("backend", "throttle"), "Deliveries at once, after a pause."),
    "penstock_store_bytes": ("gauge", ("backend",), "What the store occupies, roughly."),
    "penstock_sync_seconds": ("histogram", ("backend",), "Time of each fsync, since the store was opened."),
    "penstock_group_commit_calls": (
        "histogram",
        ("backend",),
        "Calls that shared one fsync, since the store was opened.",
    ),
}


class Families:
    """The metrics of one look: each a family that samples are added to."""

    def __init__(self) -> None:
        self._families: dict[str, Any] = {}

    def add(self, name: str, labels: Sequence[str], value: Any) -> None:
        """A number, a `Histogram`, or for an info its labels."""
        kind, label_names, what = TABLE[name]
        family = self._families.get(name)
        if kind == "info":
            family = family or InfoMetricFamily(name, what)
            family.add_metric((), value)
        elif kind == "histogram":
            family = family or HistogramMetricFamily(name, what, labels=label_names)
            family.add_metric(labels, list(_buckets(value)), sum_value=value.total)
        else:
            made = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            family = family or made(name, what, labels=label_names)
            family.add_metric(labels, value)
        self._families[name] = family

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._families.values())


def _buckets(histogram: Histogram) -> Iterator[tuple[str, float]]:
    """Cumulative, as Prometheus wants them."""
    count = 0
    for bound, more in zip((*histogram.bounds, None), histogram.counts, strict=True):
        count += more
        yield ("+Inf" if bound is None else str(float(bound)), count)


class Collector:
    """`registry.register(Collector(ps))` adds an open system's metrics to a registry of yours."""

    def __init__(self, ps: Penstock) -> None:
        self._ps = ps

    def describe(self) -> list[Metric]:
        """Nothing: a registry that asks would read every queue just to learn names."""
        return []

    def collect(self) -> Iterator[Metric]:
        families = Families()
        families.add("penstock", (), {"version": __version__})
        with suppress(PenstockError):  # Without an owner, say: the rest is told all the same.
            for name, backend in self._ps.info().backends.items():
                labels = {"backend": name, "engine": backend.engine, "durability": backend.durability}
                families.add("penstock_backend", (), labels)
        worth = {"healthy": 1.0, "degraded": 0.5}
        health = self._ps.health()
        for name, status in health.backends.items():
            families.add("penstock_healthy", (name,), worth.get(status, 0.0))
        for name, numbers in health.numbers.items():
            _add_health(families, name, numbers)
        for name, metrics in self._ps.metrics().items():
            _add_backend(families, name, metrics)
        return iter(families)


def _add_health(families: Families, backend: str, numbers: HealthNumbers) -> None:
    """What queues have metrics of their own for is not told again."""
    families.add("penstock_backend_up", (backend,), float(numbers.reachable))
    families.add("penstock_backend_error_ratio", (backend,), numbers.error_rate)
    for quantile, ms in (("0.5", numbers.latency_p50_ms), ("0.99", numbers.latency_p99_ms)):
        if ms is not None:
            families.add("penstock_backend_latency_seconds", (backend, quantile), ms / 1000)
    for metric, value in (
        ("penstock_backend_memory_bytes", numbers.memory_bytes),
        ("penstock_backend_memory_limit_bytes", numbers.memory_limit_bytes),
        ("penstock_backend_pool_in_use", numbers.pool_in_use),
        ("penstock_backend_pool_size", numbers.pool_size),
        ("penstock_backend_stream_length", numbers.stream_length),
        ("penstock_backend_consumer_lag", numbers.consumer_lag),
        ("penstock_backend_shards", numbers.shards),
    ):
        if value is not None:
            families.add(metric, (backend,), value)


def _add_backend(families: Families, backend: str, metrics: BackendMetrics) -> None:
    families.add("penstock_store_bytes", (backend,), metrics.store_bytes)
    families.add("penstock_sync_seconds", (backend,), metrics.sync_s)
    families.add("penstock_group_commit_calls", (backend,), metrics.group_commit_calls)
    for throttle in metrics.throttles:
        where = (backend, throttle.key)
        families.add("penstock_throttle_tokens", where, throttle.tokens)
        families.add("penstock_throttle_rate_per_second", where, throttle.rate_per_s)
        families.add("penstock_throttle_burst", where, throttle.burst)
    for name, queue in metrics.queues.items():
        _add_queue(families, (backend, name), queue)


def _add_queue(families: Families, where: tuple[str, str], queue: QueueMetrics) -> None:
    stats = queue.stats
    for state in STORED_STATES:
        families.add("penstock_messages", (*where, str(state)), getattr(stats, state))
    families.add("penstock_oldest_ready_age_seconds", where, stats.oldest_ready_age_s or 0.0)
    families.add("penstock_enqueued", where, stats.enqueued_total)
    families.add("penstock_acked", where, stats.acked_total)
    families.add("penstock_failed", where, stats.failed_total)
    for kind, count in queue.events.items():
        families.add("penstock_events", (*where, kind), count)
    for operation in ("enqueue", "ack", "fail"):
        families.add(
            "penstock_rate_per_second", (*where, operation), getattr(stats, f"{operation}_rate_per_s")
        )
    families.add("penstock_wait_seconds", where, queue.wait_s)
    families.add("penstock_service_seconds", where, queue.service_s)
    families.add("penstock_journal_bytes", where, stats.journal_bytes)
    families.add("penstock_journal_last_seq", where, stats.last_seq)
    families.add("penstock_held_bodies", where, stats.held_bodies)
    for key in queue.keys:
        labels = (*where, key.key)
        families.add("penstock_key_ready", labels, key.ready)
        families.add("penstock_key_oldest_ready_age_seconds", labels, key.oldest_ready_age_s or 0.0)
        families.add("penstock_key_served", labels, key.served)
        families.add("penstock_key_throttled", labels, key.throttled)
    for cursor in queue.cursors:
        labels_of_cursor = (*where, cursor.name, str(cursor.required).lower())
        families.add("penstock_cursor_lag_events", labels_of_cursor, stats.last_seq - cursor.position)


class Server(Protocol):
    """A page of metrics; `shutdown` ends it."""

    server_port: int

    def shutdown(self) -> None: ...

    def server_close(self) -> None: ...


def render(ps: Penstock) -> str:
    """The metrics as text, in Prometheus's form."""
    return generate_latest(_registry(ps)).decode()


def serve(ps: Penstock, port: int, address: str = "127.0.0.1") -> Server:
    """Serve the metrics over HTTP from a thread of its own; port 0 takes a free one."""
    server, _ = start_http_server(port, address, registry=_registry(ps))
    return server


def _registry(ps: Penstock) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(ps))
    return registry
