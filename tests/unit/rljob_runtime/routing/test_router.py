"""The router, by the base policy: what a policy is told, and which engine gets a request."""

from collections.abc import Iterator
from typing import Any

from rljob_runtime.routing.policy import Policy
from rljob_runtime.routing.requests import EngineShape, GroupRequest, Place, RequestKey
from rljob_runtime.routing.router import Router

TIMED = ("dispatched", "rescored", "reentered", "settled", "moves", "progressed", "finished")
"""What a policy is told of with the book and the time; of the others with the book alone."""
UNTIMED = ("engines_changed", "cancelled")


class Witness(Policy):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, tuple[Any, ...]]] = []
        for name in (*TIMED, *UNTIMED):
            setattr(self, name, lambda *arguments, name=name: self._note(name, arguments))

    def _note(self, name: str, arguments: tuple[Any, ...]) -> Iterator[Any]:
        self.told.append((name, arguments))
        return iter(())


def test_a_policy_is_told_what_has_happened_with_the_book_and_the_time() -> None:
    policy, key = Witness(), RequestKey(0, 0)
    router = Router(policy)
    router.join(0, EngineShape("fast", 1))
    router.dispatch(GroupRequest(0, 0, 10, 1), 1.0)
    router.decide(2.0)
    router.progressed({key: 5}, 3.0)
    router.finished(key, 9, 4.0)
    assert [(name, *(told[-1:] if name in TIMED else ())) for name, told in policy.told] == [
        ("engines_changed",),
        ("dispatched", 1.0),
        ("rescored", 2.0),
        ("reentered", 2.0),
        ("settled", 2.0),
        ("rescored", 2.0),
        ("reentered", 2.0),
        ("moves", 2.0),
        ("progressed", 3.0),
        ("finished", 4.0),
        ("cancelled",),
    ]
    assert all(told[-2 if name in TIMED else -1] is router.book for name, told in policy.told)


def test_the_engine_with_the_smallest_share_of_its_places_in_use_gets_the_next_request() -> None:
    router = Router(Policy())
    for number, limit in enumerate((2, 8)):
        router.join(number, EngineShape("fast", limit))
    router.dispatch(GroupRequest(0, 0, 10, 10), 0.0)
    placed = [action.engine for action in router.decide(0.0) if isinstance(action, Place)]
    assert placed == [0, 1, 1, 1, 1, 0, 1, 1, 1, 1]
