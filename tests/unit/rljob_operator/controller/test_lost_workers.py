"""Workers that end are known until they were told, whoever came after them."""

from dataclasses import replace

import pytest

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


TAKEN = replace(pod("trainer"), disrupted="EvictionByEvictionAPI", deleting=at(30))


class TestTakenTrainers:
    @pytest.mark.parametrize(
        ("last", "known"),
        [
            (TAKEN, ["0"]),
            (replace(TAKEN, disrupted=None), []),
            (replace(TAKEN, disrupted="Evicted"), []),
            (replace(TAKEN, role=FAST), []),
        ],
        ids=["by the cluster", "by somebody", "for its own disk", "an engine"],
    )
    def test_one_is_known_also_once_it_is_told_and_gone(self, last, known):
        before = replace(last, disrupted=None, deleting=None)
        workers, _ = lost([before], [last], [])
        workers.told(REF, workers.of(REF))
        assert [each.name[-1] for each in workers.taken(REF, 1, 5)] == known

    @pytest.mark.parametrize(
        ("steps", "known"),
        [
            ([5, 5, 5], True),
            ([5, 3], True),
            ([5, 6], False),
            ([5, 3, 3, 4], False),
        ],
        ids=[
            "nothing is trained",
            "it begins again at a checkpoint",
            "a step",
            "a step after the checkpoint",
        ],
    )
    def test_it_counts_until_the_training_has_come_further(self, steps, known):
        workers, _ = lost([pod("trainer")], [TAKEN], [])
        found = [workers.taken(REF, 1, step) for step in steps]
        assert bool(found[-1]) == known

    def test_it_is_of_no_account_for_the_next_attempt_nor_for_a_job_that_is_gone(self):
        workers, _ = lost([pod("trainer")], [TAKEN], [])
        assert workers.taken(REF, 1, 5) and not workers.taken(REF, 2, 0)
        workers, _ = lost([pod("trainer")], [TAKEN], [])
        workers.forget(REF)
        assert not workers.taken(REF, 1, 5)
