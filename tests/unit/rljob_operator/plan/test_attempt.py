"""What belongs to the attempt that runs a job, among all that bears its name."""

from dataclasses import replace

import pytest

from rljob_api.status import Status
from rljob_operator.plan.attempt import alive, attempt_of, cluster_name, dead, own_clusters, own_pods
from rljob_operator.plan.pools import accelerators, count, counted, pool_status, wanted
from rljob_operator.plan.times import stamp
from tests.support.operator.observations import (
    at,
    cluster,
    end,
    pod,
    pods,
    running,
    said,
    spec,
    waiting_pod,
    with_pods,
)

FAST = "fastRollout"


def with_status(observed, **fields):
    status = observed.job.status.model_copy(update=fields)
    return replace(observed, job=replace(observed.job, status=status))


PODS = {
    # a pod: (dead, alive)
    "pending": (pod("trainer", phase="Pending"), False, True),
    "running": (pod("trainer"), False, True),
    "failed": (pod("trainer", phase="Failed"), True, False),
    "succeeded": (pod("trainer", phase="Succeeded"), True, False),
    "its program ended": (pod("trainer", main=end(0)), True, False),
    "being deleted": (pod("trainer", deleting=at(1)), False, False),
}


@pytest.mark.parametrize(("found", "is_dead", "is_alive"), PODS.values(), ids=PODS)
def test_a_pod_is_dead_or_there_to_stay(found, is_dead, is_alive):
    assert (dead(found), alive(found)) == (is_dead, is_alive)


def test_what_a_running_attempt_consists_of():
    attempt = attempt_of(running((1, 2, 1)))
    assert (attempt.number, attempt.name, attempt.cluster) == (1, "math-1", cluster(sizes=(1, 2, 1)))
    assert attempt.head == pod("head") and not attempt.head_gone and attempt.last_head is None
    assert attempt.pods == 5
    assert attempt.workers == {
        "trainer": (pod("trainer"),),
        FAST: (pod(FAST), pod(FAST, 1)),
        "heavyRollout": (pod("heavyRollout"),),
    }
    assert (attempt.reported, attempt.completed, attempt.head_runs) == (None, False, True)


def test_without_an_attempt_there_is_none():
    assert attempt_of(with_status(running(), cluster_name=None)) is None


FOREIGN = {
    "of another RayCluster": pod(FAST, 7, cluster="math-x"),
    "of another attempt": pod(FAST, 7, 2, cluster="math-1"),
    "of no RayCluster": pod(FAST, 7, cluster_uid=""),
    "of a RayCluster that was made anew": pod(FAST, 7, cluster_uid="old"),
}


@pytest.mark.parametrize("foreign", FOREIGN.values(), ids=FOREIGN)
def test_pods_that_are_not_the_attempts(foreign):
    observed = running()
    attempt = attempt_of(replace(observed, pods=(*observed.pods, foreign)))
    assert attempt.pods == 4 and foreign not in attempt.workers[FAST]


def test_while_the_cluster_is_not_seen_its_name_tells_its_pods():
    observed = replace(running(), clusters=())
    attempt = attempt_of(observed)
    assert attempt.cluster is None and attempt.pods == 4 and attempt.head == pod("head")
    unnamed = attempt_of(with_status(observed, head_pod=None))
    assert unnamed.head is None and not unnamed.head_gone


def test_another_owners_cluster_of_the_name_is_not_the_attempts():
    assert attempt_of(replace(running(), clusters=(cluster(owner="another"),))).cluster is None


FIRST, SECOND = pod("head", 5, created=at(5)), pod("head", 6, created=at(6))


@pytest.mark.parametrize("heads", [(FIRST, SECOND), (SECOND, FIRST)], ids=["in order", "in another order"])
def test_the_first_head_is_the_attempts(heads):
    observed = with_status(with_pods(running(), *heads, without=("math-1-head-0",)), head_pod=None)
    assert attempt_of(observed).head == FIRST
    same_second = tuple(replace(head, created=at(5)) for head in heads)
    observed = with_status(with_pods(running(), *same_second, without=("math-1-head-0",)), head_pod=None)
    assert attempt_of(observed).head.name == FIRST.name


def test_a_head_that_is_gone_is_remembered_by_its_uid():
    last = replace(pod("head"), ready=False, disrupted="Evicted")
    other = pod("head", 8)
    observed = replace(with_pods(running(), without=("math-1-head-0",)), lost_heads=(other, last))
    attempt = attempt_of(observed)
    assert (attempt.head, attempt.head_gone, attempt.last_head) == (None, True, last)
    assert not attempt.head_runs
    assert attempt_of(replace(observed, lost_heads=(other,))).last_head is None


NO_DRIVER = {
    "it has not started": {"phase": "Pending"},
    "it has failed": {"phase": "Failed"},
    "its driver has ended": {"driver": end(0)},
    "Ray has ended": {"main": end(1)},
}


@pytest.mark.parametrize("fields", NO_DRIVER.values(), ids=NO_DRIVER)
def test_a_head_without_a_driver(fields):
    assert not attempt_of(with_pods(running(), pod("head", **fields))).head_runs


REPORTED = 100
RUNS = {
    # the head pod as it is seen: until which second after a report at 100 s its driver runs (None: always)
    "it runs": (lambda: running(), None),
    "it is not seen": (lambda: never_seen(), 160),
    "its start is not seen": (lambda: never_seen(waiting_pod("head")), 160),
    "it is gone": (lambda: with_pods(running(), without=("math-1-head-0",)), 0),
    "it has failed": (lambda: with_pods(running(), pod("head", phase="Failed")), 0),
    "its driver has ended": (lambda: with_pods(running(), pod("head", driver=end(0))), 0),
}


def never_seen(*heads):
    """An attempt of whose head pod nothing is recorded."""
    return with_status(
        with_pods(running(), *heads, without=() if heads else ("math-1-head-0",)), head_pod=None
    )


@pytest.mark.parametrize(("seen", "until"), RUNS.values(), ids=RUNS)
def test_a_fresh_report_is_a_driver_that_runs_where_its_pod_is_not_seen_to_run(seen, until):
    attempt = attempt_of(with_status(seen(), training=said(time=stamp(at(REPORTED)))))
    assert attempt.heard_until == (at(until) if until else None)
    for seconds in (REPORTED, 159, 160, 5000):
        assert attempt.driver_runs(at(seconds)) == (until is None or seconds < until)


def test_no_report_and_one_of_a_clock_that_is_far_ahead_are_no_driver():
    for time in (None, stamp(at(REPORTED))):
        attempt = attempt_of(with_status(never_seen(), training=said(time=time)))
        assert not attempt.driver_runs(at(REPORTED - 60))
    assert attempt.driver_runs(at(REPORTED - 59))


def test_a_report_counts_from_the_making_of_the_cluster_on():
    made = replace(running(), clusters=(cluster(created=at(10)),))
    for seconds, counts in ((9, False), (10, True), (11, True)):
        told = with_status(made, training=said(time=stamp(at(seconds))))
        assert attempt_of(told).reported == (at(seconds) if counts else None)
    assert attempt_of(with_status(made, training=said(attempt=2, time=stamp(at(11))))).reported is None


DONE = said(step=10, total_steps=10, completed=True)


@pytest.mark.parametrize(
    ("training", "done"),
    [
        (DONE, True),
        (said(step=11, total_steps=10, completed=True), True),
        (said(step=9, total_steps=10, completed=True), False),
        (said(step=10, total_steps=10), False),
        (said(step=10, total_steps=10, completed=True, attempt=2), False),
    ],
    ids=["all steps", "more", "steps are left", "it does not say so", "another attempt"],
)
def test_a_job_is_done_when_its_driver_says_so_and_no_step_is_left(training, done):
    assert attempt_of(with_status(running(), training=training)).completed is done


def test_what_is_the_jobs_own():
    observed = running()
    foreign = cluster(2, owner="another")
    theirs = pod("trainer", 0, 2)
    mixed = replace(
        observed, clusters=(*observed.clusters, foreign, cluster(3)), pods=(*observed.pods, theirs)
    )
    assert own_clusters(mixed) == (cluster(), cluster(3))
    assert own_pods(mixed) == observed.pods
    assert cluster_name("math", 7) == "math-7"


def test_the_counts_of_a_pool_are_those_of_living_pods():
    found = (
        pod(FAST),
        pod(FAST, 1, ready=False),
        pod(FAST, 2, deleting=at(1)),
        pod(FAST, 3, phase="Failed"),
        pod("trainer"),
    )
    entry = counted(found, FAST, 4)
    assert (entry.name, entry.desired, entry.current, entry.ready, entry.summary) == (FAST, 4, 2, 1, "1/4")


def test_between_two_attempts_whatever_pods_are_left_are_counted():
    left = with_status(running(), cluster_name=None)
    theirs = replace(left, clusters=(cluster(2, owner="another"),), pods=(*pods(), pod(FAST, 0, 2)))
    status = count(theirs, spec(pools=(1, 5, 0)))
    assert [(entry.name, entry.summary) for entry in status.pools] == [
        ("trainer", "1/1"),
        (FAST, "2/5"),
        ("heavyRollout", "0/0"),
    ]
    assert status.fast_rollout_replicas == 2
    assert status.fast_rollout_selector == "rljob.dev/job=math,rljob.dev/pool=fastRollout"
    assert status.observed_generation == 1
    assert pool_status(status, FAST).current == 2
    assert (pool_status(Status(), FAST).name, pool_status(Status(), FAST).current) == (FAST, 0)


def test_workers_and_accelerators_that_the_spec_asks_for():
    of = spec(
        {"accelerator": "nvidia", "pools.heavyRollout": {"replicas": 3, "acceleratorsPerWorker": 4}},
        (1, 2, 0),
    )
    assert [wanted(of, pool) for pool in ("trainer", FAST, "heavyRollout")] == [1, 2, 3]
    assert [accelerators(of, pool) for pool in ("trainer", FAST, "heavyRollout")] == [1, 1, 4]
    assert accelerators(spec(), "trainer") == 0, "CPUs are no accelerators"


STRAY = replace(pod("head", 7, created=at(-9)), cluster_uid="", driver=end(0))
"""Made by somebody else, with a head's labels and a driver that is done."""


def test_labels_alone_make_no_head():
    observed = replace(running(), pods=(*pods(), STRAY))
    assert own_pods(observed) == pods()
    for clusters in (observed.clusters, ()):
        unnamed = with_status(replace(observed, clusters=clusters), head_pod=None)
        assert attempt_of(unnamed).head in (pod("head"), None) and attempt_of(unnamed).pods == 4


@pytest.mark.parametrize("stray", [STRAY, replace(STRAY, cluster_uid="of none")], ids=["labels", "an owner"])
def test_one_that_goes_before_there_is_a_ray_cluster_ends_no_attempt(stray):
    """It may name an owner that does not exist; Kubernetes deletes it then."""
    begun = with_status(running(), head_pod=None)
    observed = replace(begun, clusters=(), pods=(), lost_heads=(stray,))
    assert not attempt_of(observed).head_gone and attempt_of(observed).last_head is None
