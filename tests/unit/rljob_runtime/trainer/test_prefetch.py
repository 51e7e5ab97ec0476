"""Inputs are made ahead of their use, in order, and errors come where they are used."""

import threading
from collections.abc import Callable

import pytest
import torch

from rljob_runtime.trainer.prefetch import Prefetched, one_thread

CPU = torch.device("cpu")


def test_they_are_made_in_order_before_they_are_used() -> None:
    made: list[int] = []
    done = threading.Event()

    def maker(number: int) -> Callable[[], int]:
        def make() -> int:
            made.append(number)
            if number == 3:
                done.set()
            return number * 10

        return make

    with one_thread(CPU) as thread:
        ahead = Prefetched(thread, [maker(number) for number in range(4)])
        assert done.wait(30), "nothing had to be asked for"
        assert made == [0, 1, 2, 3]
        assert (list(ahead), ahead[1], ahead[2:], len(ahead)) == ([0, 10, 20, 30], 10, [20, 30], 4)
        assert made == [0, 1, 2, 3], "each is made once"
        assert not Prefetched(thread, [])


def test_an_error_raises_where_the_input_is_used() -> None:
    def fail() -> int:
        raise ValueError("no tokens")

    with one_thread(CPU) as thread:
        ahead = Prefetched(thread, [lambda: 1, fail, lambda: 3])
        assert ahead[0] == 1
        with pytest.raises(ValueError, match="no tokens"):
            ahead[1]
        assert ahead[2] == 3


def test_after_the_step_nothing_is_made_any_more() -> None:
    began, may_end = threading.Event(), threading.Event()
    made: list[str] = []

    def first() -> None:
        began.set()
        assert may_end.wait(30)
        made.append("first")

    def fail_in_step() -> None:
        with one_thread(CPU) as thread:
            ahead = Prefetched(thread, [first, lambda: made.append("second")])
            assert began.wait(30)
            # Called when the second one is dropped, at the end of the block, which then waits for the first.
            ahead._made[1].add_done_callback(lambda _: may_end.set())
            raise KeyError

    with pytest.raises(KeyError):
        fail_in_step()
    assert made == ["first"]
    assert not [each for each in threading.enumerate() if each.name.startswith("inputs")]
