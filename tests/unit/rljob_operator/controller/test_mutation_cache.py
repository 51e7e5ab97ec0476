"""What is observed of a RayCluster is never older than the operator's own last write to it."""

from dataclasses import replace

from rljob_operator.controller.mutation_cache import MutationCache, SeenCluster
from tests.support.operator.observations import cluster

REF = ("default", "test")


def at(version, replicas=4):
    return SeenCluster(cluster(sizes=(1, replicas, 0)), version)


def replicas(clusters):
    return [cluster.groups[1].replicas for cluster in clusters]


class TestChanged:
    def test_an_older_view_gives_way_to_what_was_written(self):
        cache = MutationCache()
        cache.changed(REF, at(7, replicas=3))
        assert replicas(cache.newest(REF, [at(6)], 0.0)) == [3]

    def test_a_view_as_new_ends_that_for_good(self):
        cache = MutationCache()
        cache.changed(REF, at(7, replicas=3))
        assert replicas(cache.newest(REF, [at(8, replicas=5)], 0.0)) == [5]
        assert replicas(cache.newest(REF, [at(6)], 0.0)) == [4]

    def test_one_that_is_gone_does_not_come_back(self):
        cache = MutationCache()
        cache.changed(REF, at(7))
        assert cache.newest(REF, [], 0.0) == ()


class TestCreated:
    def test_it_is_there_before_it_is_seen_for_a_while(self):
        cache = MutationCache()
        cache.created(REF, at(7), 100.0)
        assert replicas(cache.newest(REF, [], 109.9)) == [4]
        assert cache.newest(REF, [], 110.0) == ()

    def test_other_jobs_do_not_have_it(self):
        cache = MutationCache()
        cache.created(REF, at(7), 100.0)
        assert cache.newest(("default", "other"), [], 100.0) == ()

    def test_nothing_is_kept_of_a_job_that_is_gone(self):
        cache = MutationCache()
        cache.created(REF, at(7), 100.0)
        cache.forget(REF)
        assert cache.newest(REF, [], 100.0) == ()


class TestDeleted:
    def test_it_counts_as_being_deleted_until_it_is_not_seen(self):
        cache = MutationCache()
        seen = at(7)
        cache.deleted(REF, seen.cluster.uid)
        assert [each.deleting for each in cache.newest(REF, [seen], 0.0)] == [True]
        # A change of what is being deleted, such as its status, does not bring it back.
        assert [each.deleting for each in cache.newest(REF, [at(8)], 0.0)] == [True]
        assert cache.newest(REF, [], 0.0) == ()

    def test_its_successor_of_the_same_name_is_not_meant(self):
        cache = MutationCache()
        old = at(7)
        cache.deleted(REF, old.cluster.uid)
        new = SeenCluster(replace(old.cluster, uid="another"), 9)
        assert [each.deleting for each in cache.newest(REF, [new], 0.0)] == [False]

    def test_one_that_was_made_and_deleted_before_it_is_seen(self):
        cache = MutationCache()
        cache.created(REF, at(7), 100.0)
        cache.deleted(REF, at(7).cluster.uid)
        assert [each.deleting for each in cache.newest(REF, [], 100.0)] == [True]
        assert cache.newest(REF, [], 110.0) == ()
