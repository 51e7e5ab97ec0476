"""Static placement: the engine of each response by its place in the batch."""

import pytest

from rljob_runtime.routing.fixed import Adjacent, Interleaved
from rljob_runtime.routing.policy import Policy
from tests.support.simulated.routed import Routed

PLACES = {
    # what goes where: policy, and for each group the engines of its two responses
    "six groups of a batch on three engines": (
        Adjacent(6),
        [[0, 0], [0, 0], [1, 1], [1, 1], [2, 2], [2, 2], [0, 0]],
    ),
    "two of a batch": (Adjacent(2), [[0, 0], [1, 1], [0, 0]]),
    "responses in turn": (Interleaved(6), [[0, 1], [1, 2], [2, 0], [0, 1]]),
}


@pytest.mark.parametrize(("policy", "engines"), PLACES.values(), ids=PLACES)
def test_the_engine_follows_from_the_place_in_the_batch(policy: Policy, engines: list[list[int]]) -> None:
    of = Routed(policy, fast=3, limit=64)
    of.dispatch(range(len(engines)), samples=2)
    assert of.where == {
        (uid, sample): number for uid, each in enumerate(engines) for sample, number in enumerate(each)
    }


def test_a_request_waits_for_its_engine_until_that_is_gone() -> None:
    of = Routed(Interleaved(4), fast=2, limit=1)
    of.dispatch([0, 2], samples=2)
    assert (of.on(0), of.on(1)) == ({(0, 0)}, {(0, 1)})
    of.finish(0, 1, 9)
    assert (of.on(0), of.on(1)) == ({(0, 0)}, {(2, 1)})
    of.lose(0)
    of.finish(2, 1, 9)
    assert of.on(1) == {(0, 0)}, "dealt anew"


def test_before_an_engine_has_joined_requests_wait() -> None:
    of = Routed(Adjacent(4))
    of.dispatch([0])
    assert not of.where
