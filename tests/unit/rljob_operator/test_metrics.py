"""What becomes of metrics when the operator begins anew, and the bounds of histograms: there is one beyond
each time limit, since `histogram_quantile` says no more than the last."""

import pytest

from rljob_api.kubernetes import RunPolicy
from rljob_client.client import ClientSettings, WatchLimits
from rljob_operator.kube.work_queue import QueueSettings
from rljob_operator.metrics import OperatorMetrics

BEYOND = 1.0
"""Seconds; what is over its limit takes a little longer to end."""


def above_all_bounds(metrics, name):
    """How many observations no bound is above."""
    [family] = [each for each in metrics.registry.collect() if each.name == name]
    counts = {
        float(each.labels["le"]): each.value for each in family.samples if each.name.endswith("_bucket")
    }
    everything = counts.pop(float("inf"))
    assert everything == 1
    return everything - counts[max(counts)]


def test_of_jobs_that_start():
    metrics = OperatorMetrics()
    metrics.time_to_running_seconds.observe(RunPolicy().start_deadline_seconds + BEYOND)
    assert above_all_bounds(metrics, "rljob_time_to_running_seconds") == 0


def test_of_looks_at_jobs():
    metrics = OperatorMetrics()
    metrics.handled("late", QueueSettings().limit_seconds + BEYOND)
    assert above_all_bounds(metrics, "rljob_reconcile_duration_seconds") == 0


@pytest.mark.parametrize("seconds", [ClientSettings("").timeout_seconds, WatchLimits().silence_seconds])
def test_of_requests(seconds):
    metrics = OperatorMetrics()
    metrics.api_called("get", "pods", "none", seconds + BEYOND)
    assert above_all_bounds(metrics, "rljob_api_call_duration_seconds") == 0


def test_when_the_operator_begins_anew_counters_go_on_and_what_it_had_is_gone():
    metrics = OperatorMetrics()
    metrics.begin(["Running"], lambda phase: 3.0)
    metrics.leads(True)
    metrics.lease_renewed("failed")
    metrics.queue_length(5, 7)
    metrics.objects_held("pods", 9)
    assert metrics.registry.get_sample_value("rljob_jobs", {"phase": "Running"}) == 3
    metrics.begin(["Running"], lambda phase: 1.0)
    left = {
        each.name: each.value
        for family in metrics.registry.collect()
        for each in family.samples
        if each.value and family.type in ("gauge", "counter")
    }
    assert left == {"rljob_jobs": 1, "rljob_lease_renewals_total": 1}
