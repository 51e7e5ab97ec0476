"""A head pod that is gone is known as it was last, whoever came after it."""

from rljob_operator.controller.observe import LastHeads
from tests.support.operator.observations import end, pod

REF = ("default", "math")


def head(number, **fields):
    return pod("head", number, **fields)


class TestLastHeads:
    def test_how_it_ended_is_kept(self):
        heads = LastHeads()
        heads.see(REF, [head(0), pod("trainer")])
        heads.see(REF, [head(0, driver=end(0)), pod("trainer")])
        heads.see(REF, [pod("trainer")])
        [lost] = heads.lost(REF, [pod("trainer")])
        assert lost.driver == end(0)

    def test_a_new_head_does_not_hide_the_old_one(self):
        heads = LastHeads()
        heads.see(REF, [head(0, driver=end(2))])
        heads.see(REF, [head(1)])
        assert [each.driver for each in heads.lost(REF, [head(1)])] == [end(2)]

    def test_one_that_is_there_is_not_lost(self):
        heads = LastHeads()
        heads.see(REF, [head(0)])
        assert heads.lost(REF, [head(0)]) == ()

    def test_of_a_cluster_the_first_is_kept(self):
        heads = LastHeads()
        for number in range(9):
            heads.see(REF, [head(number)])
        lost = [each.name for each in heads.lost(REF, [])]
        assert lost[0] == head(0).name and len(lost) == 4

    def test_of_all_clusters_the_last_few_are_kept(self):
        heads = LastHeads()
        for attempt in range(1, 10):
            heads.see(REF, [pod("head", 0, attempt)])
        assert [each.attempt for each in heads.lost(REF, [])] == [6, 7, 8, 9]

    def test_a_pod_that_only_bears_a_heads_labels_is_none(self):
        heads = LastHeads()
        for number in range(9):
            heads.see(REF, [head(0), head(1 + number, cluster_uid="")])
        assert [each.name for each in heads.lost(REF, [])] == [head(0).name]

    def test_nothing_is_kept_of_a_job_that_is_gone(self):
        heads = LastHeads()
        heads.see(REF, [head(0)])
        heads.forget(REF)
        assert heads.lost(REF, []) == ()
