"""A response over one or several attempts, and the names and seeds of its requests."""

import numpy as np
import pytest

from rljob_runtime.groups.responses import Response, request_id, response_of, response_seed
from rljob_runtime.samples import Generation, Span


def generation(*tokens: int, version: int, finish: str = "abort") -> Generation:
    return Generation(
        "1.0#0",
        np.array(tokens, np.int32),
        np.array([-token / 10 for token in tokens], np.float32),
        (Span(version, 0, len(tokens)),),
        finish,
    )


def test_a_response_that_has_just_begun_is_empty_and_can_be_put_on_the_wire():
    response = Response(began=5.0)
    assert (response.tokens.dtype, response.log_probs.dtype) == (np.int32, np.float32)
    assert (len(response.tokens), len(response.log_probs), response.spans) == (0, 0, ())
    assert (response.finish, response.engine, response.seconds) == ("abort", "", 0.0)


def test_attempts_are_joined_in_order():
    response = Response(began=5.0)
    response.extend(generation(7, 8, version=3), "fast-0", "fast", now=6.5)
    response.extend(generation(9, version=4, finish="stop"), "heavy-1", "heavy", now=9.0)
    assert response.tokens.tolist() == [7, 8, 9]
    assert response.log_probs.tolist() == pytest.approx([-0.7, -0.8, -0.9])
    assert (response.tokens.dtype, response.log_probs.dtype) == (np.int32, np.float32)
    assert response.spans == (Span(3, 0, 2), Span(4, 2, 3))
    assert (response.finish, response.engine, response.pool) == ("stop", "heavy-1", "heavy")
    assert response.seconds == 4.0, "since it was asked for, all attempts together"


@pytest.mark.parametrize(
    ("engines", "moves"), [([], 0), (["a"], 0), (["a", "a"], 0), (["a", "b"], 1), (["a", "b", "b", "a"], 2)]
)
def test_a_response_moves_when_it_goes_on_at_another_engine(engines, moves):
    response = Response(began=0.0)
    for engine in engines:
        response.extend(generation(7, version=0), engine, "fast", now=1.0)
    assert response.moves == moves


def test_a_request_names_its_response_and_the_attempt():
    assert request_id(12, 3, 0) == "12.3#0"
    assert response_of(request_id(12, 3, 0)) == response_of(request_id(12, 3, 7)) == "12.3"
    assert response_of("12.3") == "12.3"


def test_seeds_are_fixed_for_a_job_and_differ_between_responses():
    assert response_seed(0, 12, 3) == 1_612_321_168
    seeds = {response_seed(job, uid, index) for job in range(3) for uid in range(20) for index in range(8)}
    assert len(seeds) == 3 * 20 * 8
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert max(seeds) > 2**30


def test_a_response_that_begins_anew_has_nothing_of_what_it_had():
    response = Response(began=5.0)
    response.extend(generation(7, 8, version=3), "fast-0", "fast", now=6.5)
    response.begin_anew()
    assert (len(response.tokens), len(response.log_probs), response.spans) == (0, 0, ())
    assert (response.tokens.dtype, response.log_probs.dtype) == (np.int32, np.float32)
