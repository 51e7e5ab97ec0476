"""What the operator counts and measures: `rljob_*`, in the Prometheus text format.

Guarantees: every series has a bounded number of label values (no object names); each `OperatorMetrics` has a
registry of its own, so that several can live in one process.
"""

from collections.abc import Callable, Iterable
from functools import partial

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from rljob_operator.kube.observer import KubeObserver

# Bounds of histograms, in seconds: of requests and single looks, of waits, of the start of a job. The last
# bound is beyond the time limit of what is measured: a quantile is never told as more than that.
_FAST = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 180.0)
_SLOW = (0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
_START = (
    1.0,
    2.0,
    5.0,
    10.0,
    20.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    1200.0,
    1800.0,
    3600.0,
    7200.0,
    14_400.0,
)


class OperatorMetrics(KubeObserver):
    """The operator's metrics."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        # Each counter and histogram would otherwise have a second series with its time of creation.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()

        self.api_calls = Counter(
            "rljob_api_calls_total",
            "Requests to the API server, by HTTP status; code is `none` where no whole answer came.",
            ("verb", "resource", "code"),
            registry=registry,
        )
        self.api_call_seconds = Histogram(
            "rljob_api_call_duration_seconds",
            "Time from a request to the end of its answer; for a watch, to its beginning.",
            ("verb",),
            buckets=_FAST,
            registry=registry,
        )
        self.api_write_wait_seconds = Histogram(
            "rljob_api_write_wait_seconds",
            "Time that writes waited for the client-side rate limit.",
            buckets=_SLOW,
            registry=registry,
        )

        self.informer_objects = Gauge(
            "rljob_informer_objects",
            "Objects of which a part is kept in memory.",
            ("resource",),
            registry=registry,
        )
        self.informer_lists = Counter(
            "rljob_informer_lists_total",
            "Times that all objects were listed.",
            ("resource",),
            registry=registry,
        )
        self.informer_changes = Counter(
            "rljob_informer_changes_total", "Changes received by watches.", ("resource",), registry=registry
        )
        self.informer_watch_ends = Counter(
            "rljob_informer_watch_ends_total",
            "Ends of watches, by cause: closed (by the server, in time), gone, failed.",
            ("resource", "cause"),
            registry=registry,
        )

        self.queue_depth = Gauge(
            "rljob_queue_depth", "RLJobs that are due and wait for a worker.", registry=registry
        )
        self.queue_delayed = Gauge(
            "rljob_queue_delayed", "RLJobs that are to be looked at later.", registry=registry
        )
        self.queue_wait_seconds = Histogram(
            "rljob_queue_wait_seconds",
            "Time that due RLJobs waited for a worker.",
            buckets=_SLOW,
            registry=registry,
        )
        self.reconcile_seconds = Histogram(
            "rljob_reconcile_duration_seconds",
            "Time of one look at an RLJob, by outcome: done, failed, late (over its time limit).",
            ("outcome",),
            buckets=_FAST,
            registry=registry,
        )

        self.jobs = Gauge("rljob_jobs", "RLJobs, by phase.", ("phase",), registry=registry)
        self.time_to_running_seconds = Histogram(
            "rljob_time_to_running_seconds",
            "Time from the start of a job to the moment that it runs.",
            buckets=_START,
            registry=registry,
        )

        self.leader = Gauge("rljob_leader", "1 while this replica holds the lease.", registry=registry)
        self.lease_renewals = Counter(
            "rljob_lease_renewals_total",
            "Attempts to renew the lease, by outcome: done, failed.",
            ("outcome",),
            registry=registry,
        )

        self.events = Counter(
            "rljob_events_total",
            "Events for people, by outcome: created, repeated (counted into one that is there), dropped (too "
            "many, or their namespace is being deleted), failed.",
            ("outcome",),
            registry=registry,
        )

    def api_called(self, verb: str, resource: str, code: str, seconds: float) -> None:
        self.api_calls.labels(verb, resource, code).inc()
        self.api_call_seconds.labels(verb).observe(seconds)

    def write_waited(self, seconds: float) -> None:
        self.api_write_wait_seconds.observe(seconds)

    def listing(self, resource: str) -> None:
        self.informer_lists.labels(resource).inc()

    def change_received(self, resource: str) -> None:
        self.informer_changes.labels(resource).inc()

    def watch_ended(self, resource: str, cause: str) -> None:
        self.informer_watch_ends.labels(resource, cause).inc()

    def objects_held(self, resource: str, count: int) -> None:
        self.informer_objects.labels(resource).set(count)

    def queue_length(self, ready: int, delayed: int) -> None:
        self.queue_depth.set(ready)
        self.queue_delayed.set(delayed)

    def queue_waited(self, seconds: float) -> None:
        self.queue_wait_seconds.observe(seconds)

    def handled(self, outcome: str, seconds: float) -> None:
        self.reconcile_seconds.labels(outcome).observe(seconds)

    def leads(self, holds_lease: bool) -> None:
        self.leader.set(holds_lease)

    def lease_renewed(self, outcome: str) -> None:
        self.lease_renewals.labels(outcome).inc()

    def event_reported(self, outcome: str) -> None:
        self.events.labels(outcome).inc()

    def begin(self, phases: Iterable[str], count: Callable[[str], float]) -> None:
        """An instance of the operator begins: what is counted goes on, and of what there is at a time it has
        nothing yet. From now on `jobs` has, for each phase, what `count` says at the time."""
        self.leader.set(0)
        self.queue_length(0, 0)
        self.informer_objects.clear()
        for phase in phases:
            self.jobs.labels(phase).set_function(partial(count, phase))

    def render(self) -> bytes:
        """All series, as `content_type`."""
        return generate_latest(self.registry)
