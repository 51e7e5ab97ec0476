"""Tokens that wait until they are asked for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.engines.held_outputs import HeldOutputs


def add(held: HeldOutputs, name: str, tokens: list[int], log_probs: list[float]) -> None:
    held[name].tokens += tokens
    held[name].log_probs.extend(log_probs)


def taken(held: HeldOutputs, name: str) -> tuple[list[int], list[float]]:
    tokens, log_probs = held.take(name)
    assert log_probs.dtype == np.float32
    return tokens, log_probs.tolist()


def test_what_is_taken_is_what_was_added_since() -> None:
    held = HeldOutputs()
    add(held, "a", [7], [-0.5])
    add(held, "b", [9], [-2.0])
    add(held, "a", [8, 7], [-0.25, -1.0])
    assert held.waiting() == ["a", "b"]
    assert taken(held, "a") == ([7, 8, 7], [-0.5, -0.25, -1.0])
    assert held.waiting() == ["b"]
    assert taken(held, "a") == ([], [])
    add(held, "a", [3], [-4.0])
    assert taken(held, "a") == ([3], [-4.0])


def test_what_is_added_later_does_not_reach_what_was_taken() -> None:
    held = HeldOutputs()
    add(held, "a", [7], [-0.5])
    tokens, log_probs = held.take("a")
    add(held, "a", [8], [-1.0])
    assert (tokens, log_probs.tolist()) == ([7], [-0.5])


@pytest.mark.parametrize(
    ("running", "left"), [(set(), []), ({"b"}, ["b"]), ({"a", "b", "c"}, ["a", "b"]), ({"c"}, [])]
)
def test_of_requests_that_run_no_more_nothing_is_kept(running: set[str], left: list[str]) -> None:
    held = HeldOutputs()
    for name in ("a", "b"):
        add(held, name, [1], [-1.0])
    held.forget_all_but(running)
    assert held.waiting() == left


STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.lists(st.tuples(st.integers(0, 99), st.sampled_from([-0.5, -1.5])))),
    max_size=30,
)


@given(STEPS, st.sets(st.integers(0, 29)))
def test_each_token_leaves_once_with_its_own_log_probability(
    steps: list[tuple[str, list[tuple[int, float]]]], flushes: set[int]
) -> None:
    held, arrived = HeldOutputs(), {name: ([], []) for name in "abc"}  # type: ignore[var-annotated]
    for number, (name, drawn) in enumerate(steps):
        add(held, name, [token for token, _ in drawn], [value for _, value in drawn])
        if number in flushes or number == len(steps) - 1:
            for waiting in held.waiting():
                tokens, log_probs = taken(held, waiting)
                arrived[waiting][0].extend(tokens)
                arrived[waiting][1].extend(log_probs)
    for name, (tokens, log_probs) in arrived.items():
        expected = [pair for of, drawn in steps if of == name for pair in drawn]
        assert list(zip(tokens, log_probs, strict=True)) == expected
