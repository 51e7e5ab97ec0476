"""The ledger of trained prompts."""

from itertools import islice

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.groups.ledger import Ledger


@given(st.permutations(list(range(12))), st.integers(0, 12))
def test_remaining_is_what_was_not_recorded(order, count):
    ledger = Ledger()
    ledger.record(order[:count])
    assert list(ledger.remaining(12)) == sorted(order[count:])
    assert len(ledger) == count
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(ledger), type=Ledger) == ledger


def test_size_is_bounded_by_what_is_ahead():
    ledger = Ledger()
    ledger.record(range(1, 1000))
    assert len(ledger.ahead) == 999
    ledger.record([0])
    assert ledger == Ledger(1000, set())


def test_excluded_are_left_out():
    ledger = Ledger(3, {5})
    assert list(ledger.remaining(9, excluded={4, 8})) == [3, 6, 7]


def test_what_was_trained_ahead_is_not_dispatched_again_once_the_watermark_is_past_it():
    ledger = Ledger(9, {11})
    remaining = ledger.remaining(14)
    assert [next(remaining), next(remaining)] == [9, 10]
    ledger.record([9, 10])
    assert ledger == Ledger(12)
    assert list(remaining) == [12, 13]


def test_what_is_below_the_watermark_is_not_even_looked_at():
    """A job of millions of steps goes on at once."""
    looked_at = []

    class Looks(Ledger):
        def __contains__(self, uid):
            looked_at.append(uid)
            return super().__contains__(uid)

    assert next(Looks(1000, {1000}).remaining(2000)) == 1001
    assert looked_at == [1000, 1001]


def test_a_copy_is_independent():
    ledger = Ledger(3, {5})
    copy = ledger.copy()
    assert copy == ledger
    ledger.record([3, 4])
    assert copy == Ledger(3, {5})


@pytest.mark.parametrize(("ledger", "end"), [(Ledger(), 0), (Ledger(3, set()), 3), (Ledger(3, {5, 9}), 10)])
def test_end(ledger, end):
    assert ledger.end == end


def test_twice_is_an_error():
    ledger = Ledger(3, {5})
    for uid in (0, 5):
        with pytest.raises(ValueError, match="done before"):
            ledger.record([uid])
        with pytest.raises(ValueError, match="done before"):
            ledger.refuse(uid, "equal_rewards")


def test_refused_prompts_are_done_and_not_trained():
    ledger = Ledger()
    ledger.record([0, 2])
    ledger.refuse(1, "equal_rewards")
    ledger.refuse(4, "pass_rate")
    assert ledger == Ledger(3, {4}, refused=2, refused_pass_rate=1) == ledger.copy()
    assert (len(ledger), ledger.trained) == (4, 2)
    assert list(ledger.remaining(6)) == [3, 5]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(ledger), type=Ledger) == ledger


def test_a_ledger_of_an_older_checkpoint_has_refused_nothing():
    assert msgspec.msgpack.decode(
        msgspec.msgpack.encode({"watermark": 3, "ahead": [5]}), type=Ledger
    ) == Ledger(3, {5})


def test_without_a_total_there_is_always_another_prompt():
    assert list(islice(Ledger(3, {5}).remaining(None, excluded={6}), 4)) == [3, 4, 7, 8]
