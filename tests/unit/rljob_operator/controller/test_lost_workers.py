"""Workers that end are known until they were told, whoever came after them."""

from dataclasses import replace

from rljob_operator.controller.lost_workers import LostWorkers
from tests.support.operator.observations import at, end, pod, pods, waiting_pod

REF = ("default", "math")
FAST = "fastRollout"


def lost(*views):
    """What is lost after a job's pods were seen so, one view after the other."""
    workers = LostWorkers()
    for view in views:
        workers.see(REF, view)
    return workers, [(each.name[-1], each.main is not None) for each in workers.of(REF)]


class TestLostWorkers:
    def test_one_that_ended_is_known_as_it_ended(self):
        dead = replace(pod(FAST), phase="Failed", main=end(137, "", "OOMKilled"))
        assert lost([pod(FAST)], [dead], [pod(FAST, 9)])[1] == [("0", True)]

    def test_one_that_vanished_is_known_as_it_was(self):
        assert lost([pod(FAST), pod("trainer", 5)], [pod("trainer", 5)])[1] == [("0", False)]

    def test_a_pod_that_only_bears_a_workers_labels_is_none(self):
        assert lost([pod(FAST, cluster_uid="")], [])[1] == []

    def test_one_that_is_deleted_is_lost_from_then_on(self):
        going = replace(pod(FAST), deleting=at(30))
        assert lost([pod(FAST)], [going])[1] == [("0", False)]
        assert lost([pod(FAST)], [going], [])[1] == [("0", False)]

    def test_heads_and_pods_that_never_ran_are_not_workers_lost(self):
        assert lost([pod("head"), waiting_pod(FAST, 3)], [])[1] == []

    def test_it_is_told_once(self):
        workers, _ = lost([pod(FAST), pod(FAST, 1)], [pod(FAST, 1)])
        workers.told(REF, workers.of(REF))
        assert workers.of(REF) == ()
        workers.see(REF, [])
        assert [each.name[-1] for each in workers.of(REF)] == ["1"]

    def test_nothing_is_kept_of_a_job_that_is_gone(self):
        workers, _ = lost(pods(), [])
        workers.forget(REF)
        workers.see(REF, [])
        assert workers.of(REF) == ()
