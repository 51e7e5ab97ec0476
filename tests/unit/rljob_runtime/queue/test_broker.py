"""The rules of the queue, one by one."""

import pytest

from rljob_runtime.queue.broker import Broker, Granted, GroupTooLarge, Impossible, Stored, WrongTerm
from rljob_runtime.queue.wire import QueuedGroup

LEASE = 10.0


def broker(capacity=8, term=0, clients=("driver", "trainer", "other")):
    made = Broker(capacity, LEASE, term)
    for client in clients:
        made.touch(client, now=0.0)
    return made


def groups(*uids, samples=2):
    return [QueuedGroup(uid, samples, b"%d" % uid) for uid in uids]


def put(broker, number, *uids, samples=2, client="driver"):
    return broker.put((client, number), groups(*uids, samples=samples))


def get(broker, number, *uids, client="trainer"):
    return broker.get((client, number), uids)


def held(broker):
    """All groups that are ready or leased, oldest first."""
    return [broker._held[uid] for uid in sorted(broker._held)]


def uids_of(outcomes):
    (outcome,) = outcomes
    assert isinstance(outcome, Granted)
    return [group.uid for group in outcome.groups]


def test_a_group_passes_through():
    queue = broker()
    assert put(queue, 1, 5) == [Stored(("driver", 1), (True,))]
    assert get(queue, 1, 5) == [Granted(("trainer", 1), (QueuedGroup(5, 2, b"5"),))]
    assert queue.ack([5], term=0) == ([True], [])
    stats = queue.stats()
    assert (stats.accepted, stats.acknowledged, stats.ready, stats.leased, stats.held_samples) == (
        1,
        1,
        0,
        0,
        0,
    )


def test_a_put_waits_for_room_which_comes_with_the_acknowledgement():
    queue = broker(capacity=4)
    put(queue, 1, 0, 1)
    assert put(queue, 2, 2) == []
    assert uids_of(get(queue, 1, 0)) == [0], "a lease makes no room"
    assert queue.ack([0], 0) == ([True], [Stored(("driver", 2), (True,))])


def test_puts_are_met_in_order_of_arrival():
    queue = broker(capacity=8)
    put(queue, 1, 0, 1, samples=3)
    assert put(queue, 2, 2, samples=6) == []
    assert put(queue, 3, 3, samples=1) == [], "it would fit, but it is not its turn"
    assert [outcome.ticket[1] for outcome in queue.ack([0, 1], 0)[1]] == [2, 3]


def test_a_put_may_be_larger_than_the_queue_if_its_groups_are_not():
    queue = broker(capacity=4)
    assert put(queue, 1, 0, 1, 2, 3) == []
    assert queue.stats().ready == 2
    assert queue.ack([0, 1], 0)[1] == [Stored(("driver", 1), (True, True, True, True))]


def test_a_group_that_can_never_fit_is_refused_with_all_of_its_put():
    queue = broker(capacity=4)
    with pytest.raises(
        GroupTooLarge, match=r"group 1 has 5 samples but the queue holds only 4: raise .*Capacity"
    ):
        queue.put(("driver", 1), [QueuedGroup(0, 1, b""), QueuedGroup(1, 5, b"")])
    assert queue.stats().accepted == 0 and queue.stats().waiting_puts == 0


@pytest.mark.parametrize("state", ["ready", "leased", "done", "waiting"])
def test_a_second_put_is_a_duplicate(state):
    queue = broker(capacity=2)
    put(queue, 1, 9 if state == "waiting" else 5)
    if state == "waiting":
        assert put(queue, 2, 5) == put(queue, 3, 5) == []
        queue.ack([9], 0)
        assert queue.stats().ready == 1, "one of the two"
    if state in ("leased", "done"):
        get(queue, 1, 5)
    if state == "done":
        queue.ack([5], 0)
    if state != "waiting":
        assert put(queue, 2, 5) == [Stored(("driver", 2), (state != "done",))]
    assert queue.stats().duplicates == 1


@pytest.mark.parametrize("leased", [False, True])
def test_another_group_of_a_uid_that_is_held_is_refused(leased):
    queue = broker()
    put(queue, 1, 5)
    if leased:
        get(queue, 1, 5)
    other = QueuedGroup(5, 2, b"made again")
    assert queue.put(("driver", 2), [other]) == [Stored(("driver", 2), (False,))]
    assert held(queue) == groups(5)


def test_a_get_waits_until_all_are_there():
    queue = broker()
    put(queue, 1, 2)
    assert get(queue, 1, 1, 2, 3) == []
    put(queue, 2, 3)
    assert queue.stats().leased == 0
    assert uids_of(outcome for outcome in put(queue, 3, 1) if isinstance(outcome, Granted)) == [1, 2, 3]


def test_a_get_looks_again_at_what_others_took_meanwhile():
    queue = broker()
    put(queue, 1, 1)
    assert get(queue, 1, 1, 2) == []
    assert uids_of(get(queue, 1, 1, client="other")) == [1]
    assert [type(outcome) for outcome in put(queue, 2, 2)] == [Stored]
    assert uids_of(queue.release("other", [1])) == [1, 2]


def test_a_get_of_what_the_client_holds_hands_it_out_again():
    queue = broker()
    put(queue, 1, 1, 2)
    get(queue, 1, 1)
    assert uids_of(get(queue, 2, 1, 2)) == [1, 2]
    assert queue.stats().leased == 2


def test_a_get_of_what_is_done_is_impossible():
    queue = broker()
    put(queue, 1, 1)
    get(queue, 1, 1, client="other")
    assert get(queue, 1, 1, 2) == []
    assert queue.ack([1], 0)[1] == [Impossible(("trainer", 1), "group 1 is done")]
    assert get(queue, 2, 1) == [Impossible(("trainer", 2), "group 1 is done")]


def test_released_groups_are_ready_again_and_only_those_of_who_releases_them():
    queue = broker(capacity=100)
    put(queue, 1, 3, 5, 7, 9)
    get(queue, 1, 3, 5, 7)
    get(queue, 1, 9, client="other")
    assert queue.stats().leased == 4
    queue.release("trainer", [3, 5, 7, 9])
    assert (queue.stats().released, queue.stats().leased) == (3, 1)
    queue.release("other", [9])
    assert (queue.stats().released, queue.stats().leased, queue.stats().ready) == (4, 0, 4)
    assert held(queue) == groups(3, 5, 7, 9)
    assert uids_of(get(queue, 2, 7, 3, client="other")) == [7, 3], "in the order of the get"


def test_a_silent_client_loses_its_leases():
    queue = broker()
    put(queue, 1, 1, 2)
    get(queue, 1, 1, 2)
    queue.touch("driver", now=8.0)
    queue.touch("other", now=8.0)
    assert queue.next_deadline() == LEASE
    assert queue.overdue(LEASE - 0.1) == []
    assert queue.overdue(LEASE) == ["trainer"]
    assert get(queue, 1, 1, 2, client="other") == []
    assert uids_of(queue.gone("trainer")) == [1, 2]
    assert queue.stats().expired == 2 and queue.next_deadline() == 18.0


def test_a_sign_of_life_renews_the_lease():
    queue = broker(clients=())
    queue.touch("trainer", now=0.0)
    queue.touch("trainer", now=9.0)
    assert queue.overdue(LEASE) == [] and queue.overdue(9.0 + LEASE) == ["trainer"]


def test_waiting_requests_leave_with_their_client():
    queue = broker(capacity=2)
    put(queue, 1, 0)
    put(queue, 2, 1)
    put(queue, 1, 2, client="other")
    get(queue, 1, 7)
    assert queue.gone("driver") == []
    queue.gone("trainer")
    assert queue.ack([0], 0)[1] == [Stored(("other", 1), (True,))]
    assert queue.stats().waiting_gets == 0


def test_a_withdrawn_request_makes_way():
    queue = broker(capacity=4)
    put(queue, 1, 0)
    assert put(queue, 2, 1, samples=4) == put(queue, 3, 2) == []
    assert queue.withdraw(("driver", 2)) == [Stored(("driver", 3), (True,))]


@pytest.mark.parametrize("now_with", [None, "other"])
def test_a_late_acknowledgement_counts_once(now_with):
    queue = broker()
    put(queue, 1, 1)
    get(queue, 1, 1)
    queue.gone("trainer")
    if now_with:
        get(queue, 1, 1, client=now_with)
    assert queue.ack([1], 0)[0] == [True], "it was trained"
    assert queue.ack([1], 0)[0] == [False]
    stats = queue.stats()
    assert (stats.acknowledged, stats.acknowledged_again, stats.ready, stats.leased) == (1, 1, 0, 0)


def test_a_group_named_twice_counts_once():
    queue = broker()
    put(queue, 1, 1, 2)
    get(queue, 1, 1, 2)
    queue.release("trainer", [1, 1])
    assert queue.ack([2, 2, 7, 7], 0)[0] == [True, False, True, False]
    stats = queue.stats()
    assert (stats.acknowledged, stats.acknowledged_unseen, stats.acknowledged_again) == (1, 1, 2)
    assert (stats.released, stats.ready, stats.leased, stats.held_samples) == (1, 1, 0, 2)


def test_what_an_earlier_host_handed_out_can_be_acknowledged():
    queue = broker()
    assert queue.ack([3], 0)[0] == [True]
    assert put(queue, 1, 3, 4) == [Stored(("driver", 1), (False, True))]
    assert queue.stats().acknowledged_unseen == 1 and queue.stats().acknowledged == 0


def test_cleared_groups_may_come_again():
    queue = broker()
    put(queue, 1, 1, 2, 3)
    get(queue, 1, 2)
    assert queue.reset(term=1, watermark=0, ahead=[3])[0] == 3
    assert queue.stats().cleared == 3
    assert put(queue, 2, 1, 3) == [Stored(("driver", 2), (True, False))]


def test_going_back_to_a_checkpoint():
    queue = broker(capacity=4)
    put(queue, 1, 0, 1)
    put(queue, 2, 4)
    get(queue, 1, 0, 1)
    get(queue, 2, 8)
    queue.ack([0], 0)
    count, outcomes = queue.reset(term=1, watermark=0, ahead=[6])
    assert count == 2
    assert [outcome.ticket for outcome in outcomes] == [("trainer", 2)]
    assert all(isinstance(outcome, Impossible) for outcome in outcomes)
    with pytest.raises(WrongTerm, match=r"group 1 was taken in term 0 .* \(term 1\).* does not count"):
        queue.ack([1], term=0)
    assert put(queue, 3, 0, 6) == [Stored(("driver", 3), (True, False))], "0 is to be trained again"
    assert queue.stats().stale_acknowledgements == 1
    assert queue.reset(term=1, watermark=0, ahead=[6]) == (0, []), "saying it again changes nothing"
    with pytest.raises(WrongTerm, match="back to term 0"):
        queue.reset(0, 0, [])


def test_a_reset_in_the_same_term_adds_to_what_is_done():
    queue = broker(term=2)
    put(queue, 1, 3, 4, 9)
    queue.ack([7], 2)
    get(queue, 1, 4, 5)
    count, outcomes = queue.reset(2, watermark=4, ahead=[5])
    assert count == 1
    assert outcomes == [Impossible(("trainer", 1), "group 5 is done")]
    assert held(queue) == groups(4, 9)
    assert put(queue, 2, 3, 5, 7) == [Stored(("driver", 2), (False, False, False))]


@pytest.mark.parametrize("capacity, lease", [(0, 1.0), (1, 0.0)])
def test_nonsense_is_refused(capacity, lease):
    with pytest.raises(ValueError, match="at least 1 sample"):
        Broker(capacity, lease)


def test_a_long_job_needs_no_more_memory_than_a_short_one():
    queue = broker()
    for uid in range(5000):
        put(queue, uid, uid)
        get(queue, uid, uid)
        queue.ack([uid], 0)
    assert queue.stats().done == 5000
    assert not queue._done.ahead and not queue._held and not queue._holders


def test_without_clients_nobody_can_be_overdue():
    assert broker(clients=()).next_deadline() is None


def test_counters_add_up_over_several_times():
    queue = broker(capacity=20)
    for number, uid in enumerate((1, 2)):
        put(queue, number, uid)
        get(queue, number, uid)
        assert queue.gone("trainer") == []
        queue.touch("trainer", now=1.0)
        assert queue.ack([10 + uid], 0)[0] == [True]
    queue.reset(1, 0, [])
    for uids in ([3], [4, 5]):
        with pytest.raises(WrongTerm):
            queue.ack(uids, 0)
    stats = queue.stats()
    assert (stats.expired, stats.acknowledged_unseen, stats.stale_acknowledgements) == (2, 2, 3)


def test_the_smallest_queue():
    queue = Broker(1, 0.5)
    queue.touch("driver", now=0.0)
    assert put(queue, 1, 0, samples=1) == [Stored(("driver", 1), (True,))]
    assert queue.next_deadline() == 0.5


def test_every_duplicate_counts():
    queue = broker()
    put(queue, 1, 5)
    put(queue, 2, 5)
    put(queue, 3, 5)
    assert queue.stats().duplicates == 2


def test_a_withdrawn_get_takes_nothing():
    queue = broker()
    assert get(queue, 1, 5) == []
    assert queue.withdraw(("trainer", 1)) == []
    assert queue.stats().waiting_gets == 0
    assert put(queue, 1, 5) == [Stored(("driver", 1), (True,))]


def test_waiting_requests_are_told_why_they_end_with_the_term():
    queue = broker(capacity=2)
    put(queue, 1, 0)
    put(queue, 2, 1)
    get(queue, 1, 7)
    why = "the job went back to a checkpoint"
    assert queue.reset(term=1, watermark=0, ahead=[]) == (
        1,
        [Impossible(("driver", 2), why), Impossible(("trainer", 1), why)],
    )


def test_what_the_queue_is():
    stats = broker(capacity=8, term=3, clients=("driver", "trainer")).stats()
    assert (stats.capacity_samples, stats.term, stats.clients) == (8, 3, 2)
