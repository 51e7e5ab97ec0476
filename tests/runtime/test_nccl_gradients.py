"""Gradients that two ranks compute over NCCL, in every way to share the work: those of one process.

Needs two NVIDIA accelerators; `test_hdp.py`, `test_trainer_tensor.py` and `test_trainer_sharding.py` have the
same over gloo, with more ranks.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljob_runtime.trainer.step_metrics import StepMetrics
from tests.support.runtime.families import family_model
from tests.support.runtime.hdp_steps import (
    Case,
    FirstShare,
    Gradients,
    Random,
    assert_same_metrics,
    take_step,
    worst,
)
from tests.support.runtime.rank_processes import RankProcesses
from tests.support.runtime.tiny_models import hdp_model, tiny_model
from tests.support.runtime.trained_steps import ALGORITHMS, settings, train
from tests.support.runtime.trainer_ranks import model_folder, trainer_job
from tests.support.runtime.two_devices import ACCELERATOR, needs_two

RANKS = 2
EXACT = 1e-13
"""In float64. Over gloo it is 1e-14; atomic additions on a device have no order."""
KL = {"kl": {"coefficient": 0.1}, "entropyCoefficient": 0.01}

pytestmark = [needs_two, pytest.mark.timeout(300)]

WAYS: dict[str, dict[str, Any]] = {
    "layers split": {"tensor": 2, "pass_tokens": 128},
    "a copy of the model on each": {"copy": 1},
    "one copy, sharded": {},
    "all samples shared by all-gather": {"plans": FirstShare(2)},
    "all samples shared by Ulysses": {"plans": FirstShare(2), "attention": "ulysses"},
    "some samples shared by all-gather": {"plans": Random(0)},
    "some samples shared by Ulysses": {"plans": Random(0), "attention": "ulysses"},
}


@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_those_of_one_process(ranks: RankProcesses, tmp_path: Path, way: str) -> None:
    """Of two updates, of which the second begins with weights that rounding has moved, and AdamW divides by
    small numbers."""
    case = Case(tiny_model(tmp_path / "model"), batches=2, algorithm=KL, accelerator=ACCELERATOR)
    metrics, gradients = ranks.run(1, take_step, case)[0]
    found = ranks.run(2, take_step, replace(case, **WAYS[way]))
    assert worst(found[0][1][:1], gradients[:1]) <= EXACT
    assert worst(found[0][1][1:], gradients[1:]) <= 1e-7
    for each, _ in found:
        assert_same_metrics(each, metrics, 1e-6, near=1e-6)


def test_gradients_of_an_adapter_in_a_pair(ranks: RankProcesses, tmp_path: Path) -> None:
    adapter = {"rank": 4, "alpha": 12}
    case = Case(
        tiny_model(tmp_path / "model"),
        algorithm=KL,
        accelerator=ACCELERATOR,
        pass_tokens=128,
        adapter=adapter,
    )
    metrics, gradients = ranks.run(1, take_step, case)[0]
    found = ranks.run(2, take_step, replace(case, tensor=2))
    assert worst(found[0][1], gradients) <= EXACT
    for each, _ in found:
        assert_same_metrics(each, metrics)


@pytest.mark.parametrize("how", ["grouped", "eager"])
def test_gradients_of_experts_by_parts(ranks: RankProcesses, tmp_path: Path, how: Any) -> None:
    folder = family_model(tmp_path / "model", "qwen3_moe")
    case = Case(folder, algorithm=KL, accelerator=ACCELERATOR, pass_tokens=128, experts=how)
    metrics, gradients = ranks.run(1, take_step, case)[0]
    found = ranks.run(2, take_step, replace(case, tensor=2))
    assert worst(found[0][1], gradients) <= EXACT
    for each, _ in found:
        assert_same_metrics(each, metrics)


def test_the_kernel_for_groups_leaves_others_rows_out(ranks: RankProcesses, tmp_path: Path) -> None:
    """In bfloat16, which it takes: rows that it does not write hold anything. A pair is no further from
    float64 than one process is."""
    case = Case(tiny_model(tmp_path / "model", "qwen3_moe"), accelerator=ACCELERATOR, pass_tokens=128)
    exact = ranks.run(1, take_step, case)[0][1]
    rounded = replace(case, dtype="bfloat16")
    alone = ranks.run(1, take_step, rounded)[0][1]
    pair = ranks.run(2, take_step, replace(rounded, tensor=2))[0][1]
    assert 0 < apart(pair, exact) <= 1.5 * apart(alone, exact)


def apart(found: Sequence[Gradients], expected: Sequence[Gradients]) -> float:
    """Relative difference of all gradients together; NaN where any is no number."""
    (one,), (other,) = found, expected
    whole = sum(np.square(each).sum() for each in other.values())
    return float(np.sqrt(sum(np.square(one[name] - each).sum() for name, each in other.items()) / whole))


@pytest.mark.parametrize("family", ["mistral, window 9", "one key head"])
def test_ulysses_with_windows_and_with_fewer_key_heads_than_ranks(
    ranks: RankProcesses, tmp_path: Path, family: str
) -> None:
    case = Case(hdp_model(tmp_path / "model", family), accelerator=ACCELERATOR)
    shared = replace(case, plans=FirstShare(2), attention="ulysses")
    expected = ranks.run(1, take_step, case)[0][1]
    assert worst(ranks.run(2, take_step, shared)[0][1], expected) <= EXACT


@pytest.mark.parametrize("attention", ["allGather", "ulysses"])
@pytest.mark.parametrize("family", ["gemma2, window 9", "gpt_oss, window 9"])
def test_caps_and_sinks(ranks: RankProcesses, tmp_path: Path, family: str, attention: Any) -> None:
    """In float64 those of one process; in bfloat16, for which scores are products of a kernel that gives
    float32, two ranks are no further from them than one is."""
    case = Case(hdp_model(tmp_path / "model", family), accelerator=ACCELERATOR, experts="eager")
    shared = replace(case, plans=FirstShare(2), attention=attention)
    exact = ranks.run(1, take_step, case)[0][1]
    assert worst(ranks.run(2, take_step, shared)[0][1], exact) <= EXACT
    alone = ranks.run(1, take_step, replace(case, dtype="bfloat16"))[0][1]
    pair = ranks.run(2, take_step, replace(shared, dtype="bfloat16"))[0][1]
    assert 0 < apart(pair, exact) <= 1.5 * apart(alone, exact)
    assert apart(alone, exact) <= 0.2


def test_the_check_finds_gradients_that_stay_on_their_rank(ranks: RankProcesses, tmp_path: Path) -> None:
    case = Case(tiny_model(tmp_path / "model"), accelerator=ACCELERATOR)
    broken = replace(case, plans=FirstShare(2), without_others=True)
    expected = ranks.run(1, take_step, case)[0][1]
    assert worst(ranks.run(2, take_step, broken)[0][1], expected) > 0.01


JOBS: dict[str, dict[str, Any]] = {
    "tensorParallel": {"tensorParallel": 2},
    "shardGroupSize": {"shardGroupSize": 1},
    "contextParallel by Ulysses": {"contextParallel": {"fixed": {"degree": 2}, "attention": "ulysses"}},
    "contextParallel, hybrid": {"contextParallel": {"hybrid": {}}},
}


def test_steps_of_jobs_are_those_of_one_rank(ranks: RankProcesses, tmp_path: Path) -> None:
    """Whole trainer ranks in float32, set up by the job's fields: three steps of two updates, so that each
    shows what the one before it made of the weights."""
    folder = model_folder(trainer_job(), tmp_path / "model")
    expected = ranks.run(1, train, folder, _settings(1), 3)[0][0]
    for name, parallel in JOBS.items():
        for found, _ in ranks.run(2, train, folder, _settings(2, **parallel), 3):
            _check_steps(found, expected, name)


ADAPTER: dict[str, Any] = {
    "adapter": {"rank": 4, "alpha": 8, "targetModules": ["v_proj", "down_proj"]},
    "model": {"headDim": 32, "layers": 1},
    "rollout": {"engine": {"vllm": {}}},
    # vLLM multiplies adapters in 16 bits on accelerators, and a job trains what its engines have.
    **({} if ACCELERATOR == "cpu" else {"policy": {"dtype": "bfloat16"}}),
}
COMPILED: dict[str, list[dict[str, Any]]] = {
    # `parallel` of the jobs of two ranks.
    "all weights": [{}, {"tensorParallel": 2}, {"contextParallel": {"hybrid": {}}}],
    "an adapter": [{}, {"tensorParallel": 2}],
}


@pytest.mark.parametrize("trained", COMPILED)
def test_steps_of_jobs_whose_layers_are_compiled(ranks: RankProcesses, tmp_path: Path, trained: str) -> None:
    """By the device's own compiler, after a rehearsal: those of one rank that compiles nothing."""
    changes = ADAPTER if trained == "an adapter" else {}
    folder = model_folder(trainer_job(**changes), tmp_path / "model")
    expected = ranks.run(1, train, folder, _settings(1) | changes, 3)[0][0]
    for parallel in COMPILED[trained]:
        made = _settings(2, **parallel) | changes | {"compute": {"compile": True}}
        for found in ranks.run(2, _compiled, folder, made):
            _check_steps(found, expected, f"{trained}, {parallel}", "policy" in changes)


def _compiled(
    rank: int, world_size: int, store: Path, folder: Path, changes: dict[str, Any]
) -> list[StepMetrics]:
    """Three steps after a rehearsal. CPUs' compiler takes minutes."""
    from tests.support.runtime.compiling import compiled_quickly

    with compiled_quickly() if ACCELERATOR == "cpu" else nullcontext():
        return train(rank, world_size, store, folder, changes, 3, rehearse=True)[0]


@pytest.mark.skipif(ACCELERATOR == "cpu", reason="what is moved to CPUs is not on them")
def test_an_adapter_beside_weights_on_cpus(ranks: RankProcesses, tmp_path: Path) -> None:
    folder = model_folder(trainer_job(**ADAPTER), tmp_path / "model")
    expected = ranks.run(1, train, folder, _settings(1) | ADAPTER, 3)[0][0]
    for found, _ in ranks.run(2, train, folder, _settings(2, cpuOffload=True) | ADAPTER, 3):
        _check_steps(found, expected, "cpuOffload", half=True)


def _settings(count: int, **parallel: Any) -> dict[str, Any]:
    made = settings(ALGORITHMS["clip and kl"], 64, ranks=count, accelerator=ACCELERATOR)
    made["parallel"] |= parallel
    return made | {"compute": {"compile": False}}


def _check_steps(
    found: list[StepMetrics], expected: list[StepMetrics], name: str, half: bool = False
) -> None:
    """`half`: they were computed in 16 bits."""
    rel, near = (5e-2, 5e-3) if half else (2e-4, 1e-5)
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        try:
            assert_same_metrics(one, other, rel=rel, near=near)
        except AssertionError as error:
            raise AssertionError(f"{name}, step {number}: {error}") from error
