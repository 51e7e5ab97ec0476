"""The queue of keys, in virtual time."""

import asyncio
import logging
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_client.backoff import Backoff
from rljob_client.errors import Refusal, TooManyRequests, Unreachable
from rljob_operator.kube.work_queue import NotNow, QueueSettings, WorkQueue
from rljob_operator.metrics import OperatorMetrics
from rljob_runtime.simulate.virtual_loop import run_virtual


@dataclass
class Site:
    """A queue whose handler takes `seconds` and then returns, or raises, the key's next answer."""

    seconds: float = 1.0
    workers: int = 8
    limit_seconds: float = 100.0
    answers: dict = field(default_factory=dict)
    log: list = field(default_factory=list)
    """(time, key) of each beginning."""
    running: set = field(default_factory=set)
    most_running: int = 0
    metrics: OperatorMetrics = field(default_factory=OperatorMetrics)

    def __post_init__(self):
        backoff = Backoff(base_seconds=1.0, cap_seconds=60.0, jitter=0.0)
        settings = QueueSettings(self.workers, self.limit_seconds, backoff)
        self.queue = WorkQueue(self._handle, self.metrics, Random(0), settings)

    async def _handle(self, key):
        assert key not in self.running, "a key was handled twice at the same time"
        self.log.append((asyncio.get_running_loop().time(), key))
        self.running.add(key)
        self.most_running = max(self.most_running, len(self.running))
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.running.discard(key)
        answers = self.answers.get(key, [])
        answer = answers.pop(0) if answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def run(self, adds, until=1000.0):
        """`adds`: (time, key), then as `WorkQueue.add` has it. Returns the log."""

        async def scenario():
            self.queue.start()
            now = 0.0
            for when, *add in sorted(adds, key=lambda add: add[0]):
                if when > now:
                    await asyncio.sleep(when - now)
                    now = when
                self.queue.add(*add)
            await asyncio.sleep(until - now)
            await self.queue.stop(grace_seconds=0.0)

        run_virtual(scenario())
        return self.log


@pytest.mark.parametrize(
    ("adds", "log"),
    [
        pytest.param([(1, "a")], [(1, "a")], id="at once"),
        pytest.param([(1, "a"), (1, "a"), (1, "b")], [(1, "a"), (1, "b")], id="several times: once"),
        pytest.param([(1, "a"), (1.5, "a"), (1.6, "a")], [(1, "a"), (2, "a")], id="while it runs: once more"),
        pytest.param([(1, "a"), (3, "a")], [(1, "a"), (3, "a")], id="when it is done: again"),
        pytest.param([(1, "a", 5)], [(6, "a")], id="delayed"),
        pytest.param([(1, "a", 5), (2, "a", 1)], [(3, "a")], id="the shorter delay counts"),
        pytest.param([(1, "a", 5), (2, "a", 9)], [(6, "a")], id="the longer one does not"),
        pytest.param([(1, "a", 5), (2, "a")], [(2, "a")], id="handling ends a delay"),
        pytest.param([(1, "a"), (1.5, "a", 3)], [(1, "a"), (4.5, "a")], id="a delay set meanwhile holds"),
    ],
)
def test_when_a_key_is_handled(adds, log):
    assert Site().run(adds) == log


def test_keys_wait_for_a_worker_in_order_and_once():
    site = Site(workers=2)
    adds = [(0, key) for key in "abcac"] + [(0.5, "d"), (0.6, "c")]
    assert site.run(adds) == [(0, "a"), (0, "b"), (1, "c"), (1, "d")]
    assert site.most_running == 2


def test_the_answer_is_the_next_time():
    assert Site(answers={"a": [10.0, 0.0, None]}).run([(0, "a")]) == [(0, "a"), (11, "a"), (12, "a")]


def test_a_shorter_delay_that_was_added_meanwhile_beats_the_answer():
    site = Site(answers={"a": [10.0]})
    assert site.run([(0, "a"), (0.5, "a", 2)]) == [(0, "a"), (2.5, "a")]


def test_failures_back_off_and_success_forgets_them():
    error = RuntimeError("no")
    site = Site(seconds=0.0, answers={"a": [error, error, error, None, error, None]})
    # Waits of 1, 2, 4 s; then, after a success, of 1 s again.
    assert site.run([(0, "a"), (50, "a")]) == [(0, "a"), (1, "a"), (3, "a"), (7, "a"), (50, "a"), (51, "a")]


def test_failures_of_one_key_do_not_delay_another_and_an_add_cuts_the_wait_short():
    site = Site(seconds=0.0, answers={"a": [RuntimeError("no")] * 5})
    log = site.run([(0, "a"), (0.1, "b"), (2, "a")], until=5.0)
    assert log == [(0, "a"), (0.1, "b"), (1, "a"), (2, "a")]


def test_a_handler_that_failed_may_say_when_it_is_called_again(caplog):
    site = Site(seconds=0.0, answers={"a": [NotNow(3.0), NotNow(3.0)]})
    assert site.run([(0, "a")]) == [(0, "a"), (3, "a"), (6, "a")]
    assert b'rljob_reconcile_duration_seconds_count{outcome="failed"} 2.0' in site.metrics.render()
    assert not caplog.records, "it has told why itself"


def test_an_api_server_that_asks_to_be_left_alone_is():
    throttled = TooManyRequests("get", "too many requests", Refusal(429, retry_after=40.0))
    site = Site(seconds=0.0, answers={"a": [throttled]})
    assert site.run([(0, "a")]) == [(0, "a"), (40, "a")]


def test_a_handler_that_takes_too_long_is_cancelled_and_called_again():
    site = Site(seconds=10.0, limit_seconds=3.0)
    assert site.run([(0, "a")], until=6.0) == [(0, "a"), (4, "a")]
    assert b'rljob_reconcile_duration_seconds_count{outcome="late"} 1.0' in site.metrics.render()


@pytest.mark.parametrize(
    ("error", "trace"), [(Unreachable("get /x", "cut off"), False), (KeyError("a bug"), True)], ids=repr
)
def test_failures_are_reported_and_bugs_with_their_trace(caplog, error, trace):
    with caplog.at_level(logging.WARNING):
        Site(answers={"team/job": [error]}).run([(0, "team/job")])
    (report,) = caplog.records
    assert report.getMessage() == f"team/job: {error}; next try in 1.0 s"
    assert bool(report.exc_info) is trace


def stopped(site, grace_seconds):
    """Two keys at work at time 0, a third waits, a fourth is delayed; stopped at 0.5. When that is done."""

    async def scenario():
        site.queue.start()
        for key in "abc":
            site.queue.add(key)
        site.queue.add("d", 3.0)
        await asyncio.sleep(0.5)
        site.queue.add("a")
        await site.queue.stop(grace_seconds)
        ended = asyncio.get_running_loop().time()
        site.queue.add("e")
        await asyncio.sleep(100.0)
        return ended

    return run_virtual(scenario())


def test_stop_lets_handlers_end_and_begins_nothing():
    site = Site(seconds=2.0, workers=2)
    assert stopped(site, grace_seconds=10.0) == 2.0
    assert site.log == [(0, "a"), (0, "b")]


def test_stop_cancels_what_outlives_the_grace():
    site = Site(seconds=50.0, workers=2)
    assert stopped(site, grace_seconds=10.0) == 10.5
    assert (site.log, site.running) == ([(0, "a"), (0, "b")], set())


def test_keys_added_before_the_start_wait_for_it():
    site = Site()

    async def scenario():
        site.queue.add("a")
        await asyncio.sleep(5.0)
        assert site.metrics.registry.get_sample_value("rljob_queue_depth") == 1
        site.queue.start()
        await asyncio.sleep(2.0)

    run_virtual(scenario())
    assert site.log == [(5, "a")]


ADDS = st.lists(
    st.tuples(
        st.integers(0, 80).map(lambda quarters: quarters / 4),
        st.sampled_from("abcde"),
        st.sampled_from([0.0, 0.0, 1.5, 7.0]),
    ),
    max_size=40,
)
ANSWERS = st.dictionaries(
    st.sampled_from("abcde"), st.lists(st.sampled_from([None, 2.0, RuntimeError("no")]), max_size=4)
)


@settings(max_examples=200, deadline=None)
@given(adds=ADDS, answers=ANSWERS, workers=st.integers(1, 4), seconds=st.sampled_from([0.0, 0.5, 2.0]))
def test_no_add_is_lost(adds, answers, workers, seconds):
    """After each add, the key is handled from its beginning at least once, not before it is due unless an
    earlier reason came; and never more workers than allowed."""
    site = Site(seconds=seconds, workers=workers, answers={key: list(its) for key, its in answers.items()})
    site.run(adds)
    assert site.most_running <= workers
    assert not site.running
    for when, key, _ in adds:
        begun = [time for time, handled in site.log if handled == key and time >= when]
        assert begun, f"{key} added at {when} was never handled"
    for time, key in site.log:
        assert any(added == key and when <= time for when, added, _ in adds)


def test_what_is_first_goes_before_what_waits_and_costs_nobody_the_turn():
    site = Site(workers=1)
    adds = [(0.0, "a"), (0.1, "b"), (0.2, "c"), (0.3, "new", 0.0, True), (0.4, "newer", 0.0, True)]
    assert [key for _, key in site.run(adds)] == ["a", "new", "newer", "b", "c"]


def test_what_is_first_is_handled_once():
    site = Site(workers=1)
    adds = [(0.0, "a"), (0.1, "b"), (0.2, "b", 0.0, True), (0.3, "b", 0.0, True)]
    assert [key for _, key in site.run(adds)] == ["a", "b"]
