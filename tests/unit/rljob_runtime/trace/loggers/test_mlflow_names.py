"""Names of curves at MLflow: all arrive, and stay apart."""

import posixpath
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.evaluation.scores import SetScore
from rljob_runtime.trace.loggers.mlflow_names import mlflow_name
from rljob_runtime.trace.record.evaluation_log import EvaluationLine
from rljob_runtime.trace.record.evaluation_log import scalars as of_evaluation
from rljob_runtime.trace.record.metrics_log import scalars as of_step

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,47}", fullmatch=True)
"""What a set, a source, a reward, one of its parts or metrics may be called."""
NESTED = NAMES | st.tuples(NAMES, NAMES).map("/".join)


def is_taken(name: str) -> bool:
    """By MLflow's rules for metrics' names (its REST API, `log-metric`), as its servers on Windows read
    them."""
    folded = posixpath.normpath(name)
    return (
        re.fullmatch(r"[/\w.\- ]+", name) is not None
        and folded == name
        and not name.startswith(("..", "/"))
        and name != "."
        and len(name) <= 250
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("train/reward", "train/reward"),
        ("reward_parts/math/format-2.b", "reward_parts/math/format-2.b"),
        ("cancelled/engine lost", "cancelled/engine lost"),
        ("evaluation/gsm8k/pass@1", "evaluation/gsm8k/pass_at_1"),
        ("evaluation/gsm8k/pass@16", "evaluation/gsm8k/pass_at_16"),
        ("discarded/the trainer's, 3: lost", "discarded/the trainer_s_ 3_ lost"),
        ("parts/länge\n", "parts/l_nge_"),
        ("", "_"),
        ("/a//b/", "_/a/_/b/_"),
        ("./a/../b", "_/a/__/b"),
    ],
)
def test_names(name: str, expected: str) -> None:
    assert mlflow_name(name) == expected


@given(st.text())
def test_every_name_is_taken_and_a_taken_one_stays(name: str) -> None:
    found = mlflow_name(name)
    assert is_taken(found)
    assert mlflow_name(found) == found


def test_long_names_are_cut_and_stay_apart() -> None:
    first, second = (mlflow_name("parts/" + "n" * 300 + end) for end in "ab")
    assert is_taken(first) and is_taken(second) and first != second


@given(
    sets=st.dictionaries(
        NAMES,
        st.builds(
            SetScore,
            prompts=st.just(1), responses=st.just(1), failed=st.just(0), mean=st.just(0.5),
            pass_at=st.dictionaries(st.integers(1, 4096), st.just(0.5), max_size=4),
            response_length_mean=st.just(1.0), cut_off=st.just(0.0), unpinned=st.just(0),
            parts=st.dictionaries(NESTED, st.just(1.0), max_size=4),
            metrics=st.dictionaries(NESTED, st.just(1.0), max_size=4),
        ),
        min_size=1, max_size=3,
    )
)  # fmt: skip
def test_every_curve_of_an_evaluation_arrives_under_a_name_of_its_own(sets: dict[str, SetScore]) -> None:
    names = of_evaluation(EvaluationLine(step=0, version=0, time=0.0, seconds=0.0, sets=sets))
    found = {mlflow_name(name) for name in names}
    assert all(map(is_taken, found)) and len(found) == len(names)


@given(parts=st.dictionaries(NESTED, st.just(1.0)), sources=st.dictionaries(NAMES, st.just(1.0)))
def test_every_curve_of_a_step_keeps_its_name(parts: dict[str, float], sources: dict[str, float]) -> None:
    row = {"loss": 0.5, "reward_parts": parts, "reward_metrics": parts, "source_reward": sources}
    assert all(mlflow_name(name) == name for name in of_step(row))
