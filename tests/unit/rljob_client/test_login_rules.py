"""When somebody logs in, and what requests do meanwhile."""

from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_client.backoff import Backoff
from rljob_client.login_rules import LoginRules, Pace, Step

STEADY = Pace(Backoff(1.0, 30.0, jitter=0.0), early_seconds=60.0)
FILE = Pace(Backoff(0.0, 0.0), early_seconds=0.0)


class Value:
    """Something to show. Two with the same text are equal, as two logins may give the same."""

    def __init__(self, text):
        self.text = text

    def __eq__(self, other):
        return isinstance(other, Value) and self.text == other.text

    __hash__ = None


def happening(pace, *events):
    """Rules after events: ("came", text, lifetime, at), ("failed", at), ("refused", at), ("wanted", at)."""
    rules = LoginRules(pace, Random(0))
    for what, *rest in events:
        if what == "came":
            text, lifetime, at = rest
            rules.came(Value(text), lifetime, at)
        elif what == "failed":
            rules.failed("no network", rest[0])
        elif what == "refused":
            rules.refused(rules.current, rest[0])
        else:
            rules.wanted(rest[0])
    return rules


HOUR = ("came", "a", 3600.0, 0.0)
FOR_EVER = ("came", "a", inf, 0.0)


@pytest.mark.parametrize(
    ("events", "at", "step"),
    [
        ([], 0.0, Step.BEGIN),
        ([("wanted", 0.0)], 50.0, Step.WAIT),
        ([FOR_EVER], 1e9, Step.USE),
        # It is renewed a minute before its end, and used meanwhile.
        ([HOUR], 3539.0, Step.USE),
        ([HOUR], 3540.0, Step.RENEW),
        ([HOUR, ("wanted", 3540.0)], 3599.0, Step.USE),
        ([HOUR, ("wanted", 3540.0)], 3600.0, Step.WAIT),
        ([HOUR], 3600.0, Step.BEGIN),
        # A short one at half of its time.
        ([("came", "a", 40.0, 0.0)], 19.0, Step.USE),
        ([("came", "a", 40.0, 0.0)], 20.0, Step.RENEW),
        # One that has ended when it comes is used for a while, and then for longer.
        ([("came", "a", -9.0, 0.0)], 0.4, Step.USE),
        ([("came", "a", -9.0, 0.0)], 0.5, Step.RENEW),
        ([("came", "a", -9.0, 0.0)], 1.0, Step.BEGIN),
        ([("came", "a", -9.0, 0.0), ("came", "b", -9.0, 9.0)], 9.9, Step.USE),
        # A login that fails is told until the wait is over, and what is valid goes on.
        ([("failed", 0.0)], 0.9, Step.FAIL),
        ([("failed", 0.0)], 1.0, Step.BEGIN),
        ([("failed", 0.0), ("failed", 1.0)], 2.9, Step.FAIL),
        ([HOUR, ("wanted", 3540.0), ("failed", 3541.0)], 3541.5, Step.USE),
        ([HOUR, ("wanted", 3540.0), ("failed", 3541.0)], 3542.0, Step.RENEW),
        ([HOUR, ("wanted", 3599.0), ("failed", 3599.5)], 3600.0, Step.FAIL),
        # What is refused is asked for again at once,
        ([FOR_EVER, ("refused", 5.0)], 5.0, Step.BEGIN),
        ([FOR_EVER, ("refused", 5.0), ("wanted", 5.0)], 5.0, Step.WAIT),
        ([FOR_EVER, ("refused", 5.0), ("failed", 5.0)], 5.0, Step.FAIL),
        # and where the next one is refused, too, after a wait in which the server may say why.
        ([FOR_EVER, ("refused", 5.0), ("came", "b", inf, 6.0), ("refused", 7.0)], 7.9, Step.USE),
        ([FOR_EVER, ("refused", 5.0), ("came", "b", inf, 6.0), ("refused", 7.0)], 8.0, Step.BEGIN),
        ([FOR_EVER, ("refused", 5.0), ("came", "b", inf, 6.0), ("refused", 66.0)], 66.0, Step.BEGIN),
        ([FOR_EVER, ("refused", 5.0), ("came", "b", inf, 6.0), ("refused", 9.0)], 9.0, Step.BEGIN),
        # So is the same one again; the server may have refused it in error, and take it from then on.
        ([FOR_EVER, ("refused", 5.0), ("came", "a", inf, 6.0)], 1e9, Step.USE),
        ([FOR_EVER, ("refused", 5.0), ("came", "a", inf, 6.0), ("refused", 7.0)], 7.9, Step.USE),
        ([FOR_EVER, ("refused", 5.0), ("came", "a", inf, 6.0), ("refused", 7.0)], 8.0, Step.BEGIN),
        ([FOR_EVER, ("refused", 5.0), ("came", "a", inf, 6.0), ("refused", 66.0)], 66.0, Step.BEGIN),
        ([HOUR, ("refused", 5.0), ("came", "a", 3595.0, 5.0)], 3539.0, Step.USE),
        ([HOUR, ("refused", 5.0), ("came", "a", 3595.0, 5.0)], 3540.0, Step.RENEW),
    ],
)
def test_what_a_request_does(events, at, step):
    assert happening(STEADY, *events).wanted(at) is step


@pytest.mark.parametrize(
    ("events", "at", "step"),
    [
        ([("came", "a", 60.0, 0.0)], 59.0, Step.USE),
        ([("came", "a", 60.0, 0.0)], 60.0, Step.BEGIN),
        ([("failed", 0.0)], 0.0, Step.BEGIN),
        ([("came", "a", 60.0, 0.0), ("refused", 1.0), ("came", "a", 60.0, 1.0)], 1.0, Step.USE),
        (
            [("came", "a", 60.0, 0.0), ("refused", 1.0), ("came", "a", 60.0, 1.0), ("refused", 1.0)],
            1.0,
            Step.BEGIN,
        ),
    ],
)
def test_a_file_is_read_as_often_as_somebody_asks(events, at, step):
    assert happening(FILE, *events).wanted(at) is step


def test_what_is_equal_does_not_take_the_place_of_what_is_in_use():
    rules = happening(STEADY, HOUR)
    kept = rules.current
    rules.came(Value("a"), 3600.0, 3540.0)
    assert rules.current is kept
    assert rules.wanted(3600.0) is Step.USE


@pytest.mark.parametrize("text", ["a", "b"])
def test_later_refusals_of_an_old_one_change_nothing(text):
    rules = happening(STEADY, FOR_EVER)
    old = rules.current
    rules.refused(old, 1.0)
    rules.wanted(1.0)
    rules.came(Value(text), inf, 2.0)
    for _ in range(100):
        rules.refused(old, 2.0)
    assert rules.usable(2.0)
    assert rules.wanted(2.0) is Step.USE


@pytest.mark.parametrize("pace", [STEADY, FILE], ids=["command", "file"])
def test_one_refusal_in_error_is_one_login(pace):
    """A server that takes the same one again sees no other logins for it."""
    rules, logins = happening(pace, FOR_EVER), 0
    for now in range(100, 3700):
        if now == 100:
            rules.refused(rules.current, now)
        if rules.wanted(now) is not Step.USE:
            logins += 1
            rules.came(Value("a"), inf, now + 0.5)
    assert logins == 1


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["wanted", "came", "failed", "refused", "refused before"]),
        st.floats(0.0, 40.0),
        st.sampled_from([-5.0, 0.0, 1.0, 30.0, 100.0, inf]),
        st.integers(0, 3),
    ),
    max_size=200,
)


@given(EVENTS)
def test_one_login_at_a_time_and_never_a_storm(events):
    """Whatever happens: logins that come to nothing leave growing waits between them, and a request is told
    to use, to wait, or why not."""
    rules = LoginRules(STEADY, Random(0))
    now, under_way, before, fruitless, not_before = 0.0, False, None, 0, 0.0
    for what, passed, lifetime, text in events:
        now += passed
        if what == "wanted":
            step, usable = rules.wanted(now), rules.usable(now)
            if step in (Step.BEGIN, Step.RENEW):
                assert not under_way
                assert now >= not_before
                under_way = True
            assert step is not Step.WAIT or under_way
            assert step is not Step.RENEW or usable
            assert step is not Step.USE or rules.current is not None
            assert step is not Step.FAIL or (rules.error and not usable)
        elif what == "came" and under_way:
            before = rules.current
            rules.came(Value(text), lifetime, now)
            under_way, fruitless, not_before = False, 0, 0.0
        elif what == "failed" and under_way:
            rules.failed("no network", now)
            under_way, fruitless = False, fruitless + 1
            not_before = now + min(2.0 ** (fruitless - 1), 30.0)
        elif what == "refused" and rules.current is not None:
            rules.refused(rules.current, now)
            assert not rules.usable(now)
        elif what == "refused before" and before is not None and before is not rules.current:
            usable = rules.usable(now)
            rules.refused(before, now)
            assert rules.usable(now) == usable


@given(st.floats(0.0, 1.0), st.sampled_from([-5.0, 0.0, 1.0, inf]), st.booleans())
def test_whoever_is_always_refused_logs_in_ever_less_often(passed, lifetime, same):
    """Requests that come all the time, each answer refused at once: 600 s see a login about each 30 s."""
    rules, now, logins = LoginRules(STEADY, Random(0)), 0.0, 0
    while now < 600.0:
        if rules.wanted(now) in (Step.BEGIN, Step.RENEW):
            logins += 1
            rules.came(Value(0 if same else logins), lifetime, now)
        if rules.current is not None:
            rules.refused(rules.current, now)
        now += 0.1 + passed
    assert logins <= 2 + 5 + 600 / 30
