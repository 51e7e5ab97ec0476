"""Training steps on one rank and on two: what is learned must not depend on how the work is shared."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from rljob_runtime.job_errors import TrainingDiverged
from rljob_runtime.trainer.step_metrics import StepMetrics
from tests.support.runtime.rank_processes import RankProcesses
from tests.support.runtime.trained_steps import ALGORITHMS, assert_same, settings, train
from tests.support.runtime.trainer_ranks import groups, model_folder, trainer_job, worker

pytestmark = pytest.mark.timeout(300)
"""More than `RankProcesses` waits for a result."""

RANKS = 2


@pytest.mark.parametrize("name", ALGORITHMS)
def test_any_number_of_ranks_and_micro_batches(ranks: RankProcesses, tmp_path: Path, name: str) -> None:
    folder = model_folder(trainer_job(), tmp_path / "model")
    whole = train(0, 1, None, folder, settings(ALGORITHMS[name], 4096))
    assert_same(whole, train(0, 1, None, folder, settings(ALGORITHMS[name], 64)))
    both = ranks.run(2, train, folder, settings(ALGORITHMS[name], 64))
    assert_same(whole, both[0])
    # Each rank measured its own passes, and all learned from all of them.
    passes = [metrics.passes for metrics in both[0][0]]
    assert passes == [metrics.passes for metrics in both[1][0]]
    assert all(each.seconds > 0 and each.imbalance >= 1 for each in passes)


def test_a_loss_and_advantages_of_the_job_s_own(tmp_path: Path) -> None:
    """The default loss, written as a job's own, trains the same; one that is not finite leaves the weights as
    they are, and is named."""
    module = "tests.support.runtime.own_objective"
    folder = model_folder(trainer_job(), tmp_path / "model")
    metrics, weights = train(0, 1, None, folder, settings({}, 64))
    own = {"policyLoss": {"custom": {"function": f"{module}:clip"}}}
    own_metrics, own_weights = train(0, 1, None, folder, settings(own, 64))
    assert [each.loss for each in own_metrics] == pytest.approx([each.loss for each in metrics], rel=1e-6)
    for name, value in weights.items():
        np.testing.assert_allclose(own_weights[name], value, atol=1e-6, err_msg=name)
    ranked = own | {"advantage": {"custom": {"function": f"{module}:ranks"}}}
    ranked_metrics, _ = train(0, 1, None, folder, settings(ranked, 64), steps=1)
    assert ranked_metrics[0].grad_norm not in (0, metrics[0].grad_norm)
    broken = {"policyLoss": {"custom": {"function": f"{module}:never_finite"}}}
    with worker(trainer_job(**settings(broken, 64)), folder) as trainer:
        before = [each.clone() for each in trainer._policy.parameters()]
        with pytest.raises(TrainingDiverged, match=f'step 1: .*see that "{module}:never_finite"'):
            trainer.train_step(0, 0, groups(6, seed=0, version=0))
        for one, other in zip(trainer._policy.parameters(), before, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_that_are_held_for_an_update(ranks: RankProcesses, tmp_path: Path, dtype: str) -> None:
    """With tied embeddings, whose gradient has two parts, and several passes in an update."""
    tied = {"model": {"tieWordEmbeddings": True}, "policy": {"dtype": dtype}}
    algorithm = ALGORITHMS["clip and kl"]
    folder = model_folder(trainer_job(**tied), tmp_path / "model")
    plain = settings(algorithm, 64, **tied)
    held = settings(algorithm, 64, compute={"holdWeights": True}, **tied)
    if dtype == "float32":
        whole = train(0, 1, None, folder, plain)
        assert_same(whole, ranks.run(2, train, folder, held)[0])
        return
    exact = train(0, 1, None, folder, settings(algorithm, 64, model={"tieWordEmbeddings": True}))
    for found in (train(0, 1, None, folder, held), ranks.run(2, train, folder, held)[0]):
        assert found[0][1].loss == pytest.approx(exact[0][1].loss, abs=0.03)
        assert found[0][0].grad_norm == pytest.approx(exact[0][0].grad_norm, rel=0.05)
        for name, value in exact[1].items():
            np.testing.assert_allclose(found[1][name], value, atol=0.02, err_msg=name)


class _Reads(TorchDispatchMode):
    """Counts the operations that wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):  # type: ignore[no-untyped-def]
        waits = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default,
                 torch.ops.aten.repeat_interleave.Tensor, torch.ops.aten.masked_select.default)  # fmt: skip
        self.count += function in waits
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_nothing_is_read_from_the_device_before_the_last_update(tmp_path: Path, name: str) -> None:
    """And then the norms, in one transfer; `tests/runtime/test_nccl_step.py` has the same of a device."""
    job = trainer_job(**settings(ALGORITHMS[name], 64))
    with worker(job, model_folder(job, tmp_path / "model")) as trainer:
        trainer.train_step(0, 0, groups(6, seed=0))
        optimizer, train, reads = trainer._optimizer, trainer._steps._train, _Reads()
        update = optimizer.adamw.step

        def unseen() -> None:
            # On a CPU AdamW reads its count of steps, which is in main memory in any case.
            with _disable_current_modes():
                update()

        def seen(*arguments: Any) -> Any:
            with reads:
                return train(*arguments)

        optimizer.adamw.step, trainer._steps._train = unseen, seen
        metrics = trainer.train_step(1, 1, groups(6, seed=1, version=1))
    assert metrics.tokens > 2 * 2 * 64, "several micro-batches in each of two updates"
    assert reads.count == 0


def test_an_update_after_one_that_is_not_finite_is_not_made(ranks: RankProcesses, tmp_path: Path) -> None:
    """Of two updates in a step the first has an endless reward: the error names it, on all ranks, and the
    weights, sharded or not, are those of before."""
    folder = model_folder(trainer_job(), tmp_path / "model")
    for count in (1, 2):
        for same, told in ranks.run(count, _diverge, folder):
            assert same
            assert "step 1: the gradient is not finite" in told


def _diverge(rank: int, world_size: int, store: Path, folder: Path) -> tuple[bool, str]:
    made = groups(6)
    first = made[0].samples[0]
    endless = replace(made[0], samples=(replace(first, reward=float("inf")), *made[0].samples[1:]))
    job = trainer_job(**settings({}, 64, ranks=world_size))
    with worker(job, folder, rank, world_size, store) as trainer:
        before = {name: tensor.clone() for name, tensor in trainer.weights()}
        with np.errstate(invalid="ignore"), pytest.raises(TrainingDiverged) as raised:
            trainer.train_step(0, 0, [endless, *made[1:]] if rank == 0 else None)
        same = all(torch.equal(before[name], tensor) for name, tensor in trainer.weights())
        return same and trainer._optimizer.updates == 0, str(raised.value)


def test_without_entropies_the_rest_is_the_same(tmp_path: Path) -> None:
    folder = model_folder(trainer_job(), tmp_path / "model")
    algorithm = ALGORITHMS["reinforce, fixed-length"]
    plain = train(0, 1, None, folder, settings(algorithm, 64))
    without, weights = train(0, 1, None, folder, settings(algorithm, 64, profiling={"entropy": False}))
    assert [metrics.entropy for metrics in without] == [None, None]
    assert [metrics.loss for metrics in without] == [metrics.loss for metrics in plain[0]]
    assert all(np.array_equal(weights[name], value) for name, value in plain[1].items())
    bonus = settings(ALGORITHMS["clip and kl"], 64, profiling={"entropy": False})
    assert train(0, 1, None, folder, bonus, steps=1)[0][0].entropy > 0, "the bonus asks for them"


def test_two_ranks_in_bfloat16_with_tied_embeddings_and_recomputation(
    ranks: RankProcesses, tmp_path: Path
) -> None:
    model = {"model": {"tieWordEmbeddings": True}}
    folder = model_folder(trainer_job(**model), tmp_path / "model")
    half = model | {"policy": {"dtype": "bfloat16", "gradientCheckpointing": True}}
    exact = train(0, 1, None, folder, settings({"kl": {}}, 64, **model))
    alone = train(0, 1, None, folder, settings({"kl": {}}, 64, **half))
    shared = ranks.run(2, train, folder, settings({"kl": {}}, 64, **half))[0]
    for other in (alone, shared):
        assert other[0][1].loss == pytest.approx(exact[0][1].loss, abs=0.03)
        assert other[1].keys() == exact[1].keys()
        for name, value in exact[1].items():
            np.testing.assert_allclose(other[1][name], value, atol=0.02, err_msg=name)


def test_plans_that_follow_what_passes_took_change_nothing_that_is_learned(
    ranks: RankProcesses, tmp_path: Path
) -> None:
    """Ranks share samples by a cost model that each fits for itself, to the seconds that all measured."""
    folder = model_folder(trainer_job(), tmp_path / "model")
    hybrid = {"maxTokensPerMicroBatch": 48, "contextParallel": {"hybrid": {}}}
    shared = settings({}, 64) | {"parallel": hybrid, "ranks": 2}
    whole = train(0, 1, None, folder, settings({}, 4096), 8)
    both = ranks.run(2, train, folder, shared, 8)
    assert_same(whole, both[0])
    passes = [metrics.passes for metrics in both[0][0]]
    assert passes == [metrics.passes for metrics in both[1][0]]
    assert passes[0].r_squared is None and passes[-1].r_squared is not None
    assert passes[-1].expected_seconds is not None


@pytest.mark.parametrize("hold", [False, True])
def test_a_rank_without_work_takes_part(ranks: RankProcesses, tmp_path: Path, hold: bool) -> None:
    """One group with one response, for two ranks. A loss of the job's own is asked about that alone: the pass
    without work has a token of probability 1."""
    folder = model_folder(trainer_job(), tmp_path / "model")
    alone = _one_group(0, 1, None, folder, 1, hold)
    shared = ranks.run(2, _one_group, folder, 1, hold)
    assert shared[0].loss == pytest.approx(alone.loss, abs=1e-6)
    assert shared[0].grad_norm == pytest.approx(alone.grad_norm, rel=1e-4)
    assert shared[0].tokens == alone.tokens


def test_ranks_that_hold_weights_make_as_many_passes_as_they_need(
    ranks: RankProcesses, tmp_path: Path
) -> None:
    """Three passes, for two ranks."""
    folder = model_folder(trainer_job(), tmp_path / "model")
    alone = _one_group(0, 1, None, folder, 3, True)
    shared = ranks.run(2, _one_group, folder, 3, True)
    assert shared[0].loss == pytest.approx(alone.loss, abs=1e-6)
    assert shared[0].grad_norm == pytest.approx(alone.grad_norm, rel=1e-4)
    assert shared[0].tokens == alone.tokens


def _one_group(
    rank: int, world_size: int, store: Path | None, folder: Path, samples: int, hold: bool
) -> StepMetrics:
    """Train one group, of which no two responses fit one pass: they have 61, 45 and 40 tokens."""
    made = groups(1, seed=15, samples=samples, longest=50)
    own = {"policyLoss": {"custom": {"function": "tests.support.runtime.own_objective:surprised"}}}
    job = trainer_job(own, compute={"holdWeights": hold}, parallel={"maxTokensPerMicroBatch": 64})
    with worker(job, folder, rank, world_size, store) as trainer:
        metrics: StepMetrics = trainer.train_step(0, 0, made)
        return metrics


def test_the_same_groups_give_the_same_bits(tmp_path: Path) -> None:
    folder = model_folder(trainer_job(), tmp_path / "model")
    runs = [train(0, 1, None, folder, settings({"kl": {}}, 64), steps=4) for _ in range(2)]
    losses = [[metrics.loss for metrics in run[0]] for run in runs]
    assert losses[0] == losses[1]
    assert all(np.array_equal(runs[0][1][name], runs[1][1][name]) for name in runs[0][1])
