"""Training steps on one rank and on two: what is learned must not depend on how the work is shared."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from rljob_runtime.job_errors import TrainingDiverged
from rljob_runtime.samples import Span, decode_group, encode
from rljob_runtime.trainer.rank import TrainerWorker
from rljob_runtime.trainer.step_metrics import StepMetrics
from rljob_runtime.trainer.work import MicroBatchWork, WorkMaker
from tests.support.runtime.rank_processes import RankProcesses
from tests.support.runtime.trainer_ranks import groups, model_folder, stored_version, trainer_job, worker

pytestmark = pytest.mark.timeout(300)
"""More than `RankProcesses` waits for a result."""

RANKS = 3
Weights = dict[str, np.ndarray]
ALGORITHMS: dict[str, dict[str, Any]] = {
    "clip and kl": {"kl": {"coefficient": 0.1}, "entropyCoefficient": 0.01},
    "decoupled, sequence-mean": {
        "policyLoss": {"decoupledClip": {"level": "sequence"}},
        "aggregation": "sequence-mean",
    },
    "reinforce": {"policyLoss": {"truncatedReinforce": {}}, "normalizeByStd": False},
}


def train(
    rank: int,
    world_size: int,
    store: Path | None,
    folder: Path,
    changes: dict[str, Any],
    steps: int = 2,
    rehearse: bool = False,
) -> tuple[list[StepMetrics], Weights]:
    """Train some steps of six groups, which rank 0 has; metrics, and on rank 0 the weights that engines would
    get."""
    with worker(trainer_job(**changes), folder, rank, world_size, store) as trainer:
        if rehearse:
            trainer._rehearse()
            assert all(each.grad is None for each in trainer._policy.parameters())
        metrics = [
            trainer.train_step(step, step, groups(6, seed=step, version=step) if rank == 0 else None)
            for step in range(steps)
        ]
        ref = stored_version(trainer, steps)
        weights = load_file(Path(ref.location) / "model.safetensors") if ref is not None else {}
        return metrics, {name: value.float().numpy() for name, value in weights.items()}


def settings(algorithm: dict[str, Any], cap: int, **more: Any) -> dict[str, Any]:
    schedule = {"promptsPerBatch": 3, "batchesPerStep": 2}
    return {"algorithm": algorithm, "parallel": {"maxTokensPerMicroBatch": cap}, "schedule": schedule, **more}


def assert_same(left: tuple[list[StepMetrics], Weights], right: tuple[list[StepMetrics], Weights]) -> None:
    for one, other in zip(left[0], right[0], strict=True):
        for name in ("loss", "policy_loss", "kl", "entropy", "grad_norm", "clip_fraction", "parity_max"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-4, abs=1e-5), name
        for name in ("tokens", "response_tokens", "samples", "failed", "reward_mean", "staleness_histogram"):
            assert getattr(one, name) == getattr(other, name), name
    assert left[1].keys() == right[1].keys()
    for name, value in left[1].items():
        np.testing.assert_allclose(value, right[1][name], atol=2e-5, err_msg=name)


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
        with pytest.raises(TrainingDiverged, match=f'step 0: .*see that "{module}:never_finite"'):
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
def test_nothing_is_read_from_the_device_but_each_updates_norm(tmp_path: Path, name: str) -> None:
    job = trainer_job(**settings(ALGORITHMS[name], 64))
    with worker(job, model_folder(job, tmp_path / "model")) as trainer:
        trainer.train_step(0, 0, groups(6, seed=0))
        update = trainer._optimizer.adamw.step

        def unseen() -> None:
            # On a CPU AdamW reads its count of steps, which is in main memory in any case.
            with _disable_current_modes():
                update()

        trainer._optimizer.adamw.step = unseen
        with _Reads() as reads:
            metrics = trainer.train_step(1, 1, groups(6, seed=1, version=1))
    assert metrics.tokens > 2 * 2 * 64, "several micro-batches in each of two updates"
    assert reads.count == 2


def test_without_entropies_the_rest_is_the_same(tmp_path: Path) -> None:
    folder = model_folder(trainer_job(), tmp_path / "model")
    algorithm = ALGORITHMS["reinforce"]
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
    """One group with one response, for two ranks."""
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


@pytest.mark.parametrize(
    ("count", "hold", "sharing"),
    [(2, False, "none"), (2, True, "none"), (2, True, "hybrid"), (3, False, "hybrid")],
)
def test_a_rehearsal_changes_nothing(
    ranks: RankProcesses, tmp_path: Path, count: int, hold: bool, sharing: str
) -> None:
    """Of three ranks the last one is in no group of two, and takes part all the same."""
    folder = model_folder(trainer_job(), tmp_path / "model")
    changes = settings(ALGORITHMS["clip and kl"], 64, compute={"holdWeights": hold})
    changes["parallel"]["contextParallel"] = {sharing: {}}
    plain = ranks.run(count, train, folder, changes)[0]
    assert_same(plain, ranks.run(count, train, folder, changes, 2, True)[0])


def _degrees_rehearsed(rank: int, world_size: int, store: Path, folder: Path) -> list[int]:
    """How many ranks share each pass of a rehearsal, as this one sees it."""
    made: list[int] = []
    untrained = WorkMaker.untrained

    def watched(maker: WorkMaker, lengths: Sequence[int], degree: int = 1) -> MicroBatchWork:
        work = untrained(maker, lengths, degree)
        made.append(1 if work.shard is None else work.shard.members.degree)
        return work

    changes = settings(ALGORITHMS["clip and kl"], 64)
    changes["parallel"]["contextParallel"] = {"hybrid": {}}
    with (
        pytest.MonkeyPatch.context() as patch,
        worker(trainer_job(**changes), folder, rank, world_size, store) as trainer,
    ):
        patch.setattr(WorkMaker, "untrained", watched)
        trainer._rehearse()
    return made


def test_passes_that_ranks_share_are_rehearsed(ranks: RankProcesses, tmp_path: Path) -> None:
    folder = model_folder(trainer_job(), tmp_path / "model")
    # The last rank is idle in the second pass, which goes by the same function.
    assert ranks.run(3, _degrees_rehearsed, folder) == [[1, 2], [1, 2], [1, 1, 1]]


@pytest.mark.parametrize(
    ("compiled", "own_device", "expected"), [(True, True, 1), (True, False, 0), (False, True, 0)]
)
def test_passes_are_rehearsed_where_they_are_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool, own_device: bool, expected: int
) -> None:
    made: list[TrainerWorker] = []
    monkeypatch.setattr(TrainerWorker, "_rehearse", lambda rank: made.append(rank))
    folder = model_folder(trainer_job(), tmp_path / "model")
    job = trainer_job(compute={"compile": compiled})
    with worker(job, folder, own_device=own_device):
        assert len(made) == expected


def _compiled_in_steps(
    rank: int, world_size: int, store: Path | None, folder: Path, changes: dict[str, Any]
) -> tuple[float, list[str]]:
    """Seconds in which two steps after a rehearsal compiled something, and why."""
    torch._dynamo.reset()
    # Without a compiler of machine code, which takes seconds.
    quickly = partial(torch.compile, backend="aot_eager")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", quickly)
        with worker(trainer_job(**changes), folder, rank, world_size, store, own_device=True) as trainer:
            rehearsed: float = trainer._compilations()
            assert rehearsed > 0
            why: list[str] = []
            patch.setattr(trainer._compilations, "why", partial(_kept, why, trainer._compilations.why))
            for step in range(2):
                trainer.train_step(step, step, groups(6, seed=step, version=step) if rank == 0 else None)
            return trainer._compilations() - rehearsed, why


def _kept(told: list[str], why: Callable[[], list[str]]) -> list[str]:
    told += (found := why())
    return found


@pytest.mark.parametrize(("count", "sharing"), [(1, {"none": {}}), (2, {"hybrid": {}})], ids=str)
def test_steps_compile_nothing_that_was_not_rehearsed(
    ranks: RankProcesses, tmp_path: Path, count: int, sharing: dict[str, Any]
) -> None:
    """Passes with gradients and without any, of the policy and of the reference; of one rank and shared."""
    folder = model_folder(trainer_job(), tmp_path / "model")
    algorithm = ALGORITHMS["clip and kl"] | ALGORITHMS["decoupled, sequence-mean"]
    changes = settings(algorithm, 64, compute={"compile": True})
    changes["parallel"]["contextParallel"] = sharing
    assert ranks.run(count, _compiled_in_steps, folder, changes) == [(0.0, [])] * count


def _rehearsed_where_one_compiles(rank: int, world_size: int, store: Path, folder: Path) -> int:
    """How many rehearsals a rank of two made, of which the first alone compiles."""
    made: list[TrainerWorker] = []
    job = trainer_job(compute={"compile": rank == 0})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainerWorker, "_rehearse", lambda rank: made.append(rank))
        with worker(job, folder, rank, world_size, store, own_device=True):
            return len(made)


def test_no_rank_rehearses_where_one_does_not_compile(ranks: RankProcesses, tmp_path: Path) -> None:
    folder = model_folder(trainer_job(), tmp_path / "model")
    assert ranks.run(2, _rehearsed_where_one_compiles, folder) == [0, 0]


def _one_group(
    rank: int, world_size: int, store: Path | None, folder: Path, samples: int, hold: bool
) -> StepMetrics:
    """Train one group, of which no two responses fit one pass: they have 61, 45 and 40 tokens."""
    made = groups(1, seed=15, samples=samples, longest=50)
    job = trainer_job(compute={"holdWeights": hold}, parallel={"maxTokensPerMicroBatch": 64})
    with worker(job, folder, rank, world_size, store) as trainer:
        metrics: StepMetrics = trainer.train_step(0, 0, made)
        return metrics


def test_the_same_groups_give_the_same_bits(tmp_path: Path) -> None:
    folder = model_folder(trainer_job(), tmp_path / "model")
    runs = [train(0, 1, None, folder, settings({"kl": {}}, 64), steps=4) for _ in range(2)]
    losses = [[metrics.loss for metrics in run[0]] for run in runs]
    assert losses[0] == losses[1]
    assert all(np.array_equal(runs[0][1][name], runs[1][1][name]) for name in runs[0][1])


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_stale_beginning_is_trained_like_a_longer_prompt(
    ranks: RankProcesses, tmp_path: Path, name: str, count: int
) -> None:
    """With staleTokens: mask, version 4 and bound 1, tokens of version 2 are context."""
    folder = model_folder(trainer_job(), tmp_path / "model")
    results = []
    for stale in (True, False):
        arguments = folder, ALGORITHMS[name], stale
        results.append(
            _train_stale(0, 1, None, *arguments) if count == 1 else ranks.run(2, _train_stale, *arguments)[0]
        )
    (metrics, weights), (expected, expected_weights) = results
    for field in ("loss", "policy_loss", "kl", "entropy", "grad_norm", "importance_weight_mean"):
        assert getattr(metrics, field) == pytest.approx(getattr(expected, field), rel=1e-5, abs=1e-7), field
    assert (metrics.tokens, metrics.response_tokens) == (expected.tokens, expected.response_tokens)
    assert metrics.masked.tokens > 0.1 and metrics.masked.oldest_trained == 1
    assert (metrics.staleness_max, expected.staleness_max) == (2, 1)
    for tensor, value in expected_weights.items():
        np.testing.assert_allclose(weights[tensor], value, atol=1e-6, err_msg=tensor)


def _train_stale(
    rank: int, world_size: int, store: Path | None, folder: Path, algorithm: dict[str, Any], stale: bool
) -> tuple[StepMetrics, Weights]:
    """Train groups of one response each, of which every second has a stale third; with `stale` false, that
    third belongs to the prompt instead."""
    made = []
    for group in groups(6, samples=1, seed=1):
        sample = group.samples[0]
        size = len(sample.tokens)
        cut = size // 3 if group.uid % 2 else 0
        spans = tuple(span for span in (Span(2, 0, cut), Span(3, cut, size)) if span.end > span.start)
        prompt = group.prompt
        if not stale:
            prompt = np.concatenate([prompt, sample.tokens[:cut]])
            sample = replace(sample, tokens=sample.tokens[cut:], log_probs=sample.log_probs[cut:])
            spans = (Span(3, 0, size - cut),)
        made.append(replace(group, prompt=prompt, samples=(replace(sample, spans=spans),)))
    changes: dict[str, Any] = {"async": {"maxStaleness": 1.0, "staleTokens": "mask"}}
    schedule = {"promptsPerBatch": 3, "batchesPerStep": 2}
    with worker(
        trainer_job(algorithm, schedule=schedule, **changes), folder, rank, world_size, store
    ) as trainer:
        metrics = trainer.train_step(4, 4, made if rank == 0 else None)
        ref = stored_version(trainer, 5)
        weights = load_file(Path(ref.location) / "model.safetensors") if ref is not None else {}
        return metrics, {name: value.float().numpy() for name, value in weights.items()}


@pytest.mark.parametrize(("count", "cap"), [(1, 64), (2, 64), (2, 32)])
def test_responses_without_tokens_count_and_are_not_trained(
    ranks: RankProcesses, tmp_path: Path, count: int, cap: int
) -> None:
    """An engine may end a response at once. Every fourth one is empty, then all of one update, then all.
    With a cap of 32 ranks share samples."""
    folder = model_folder(trainer_job(), tmp_path / "model")
    alone = _train_empty(0, 1, None, folder, 64)
    metrics, weights = alone if count == 1 else ranks.run(count, _train_empty, folder, cap)[0]
    for each, expected, share in zip(metrics, alone[0], (0.25, 0.5, 1.0), strict=True):
        assert (each.samples, each.tokens, each.response_tokens) == (
            24,
            expected.tokens,
            expected.response_tokens,
        )
        assert (each.response_tokens == 0) == (share == 1.0)
        assert np.isfinite([each.loss, each.grad_norm, each.entropy, each.reward_mean]).all()
        assert each.loss == pytest.approx(expected.loss, rel=1e-4, abs=1e-6)
        assert each.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4)
    for name, value in weights[1].items():
        assert not np.array_equal(weights[0][name], value), name
        np.testing.assert_array_equal(weights[2][name], value, err_msg=name)


def _train_empty(
    rank: int, world_size: int, store: Path | None, folder: Path, cap: int
) -> tuple[list[StepMetrics], list[Weights]]:
    """The metrics of three steps, and the weights after each."""
    empty: list[Callable[[int, int], bool]] = [
        lambda group, sample: sample == 1,
        lambda group, sample: group < 3,
        lambda group, sample: True,
    ]
    with worker(
        trainer_job(**settings({}, cap), ranks=world_size), folder, rank, world_size, store
    ) as trainer:
        metrics, weights = [], []
        for step, is_empty in enumerate(empty):
            made = [
                replace(
                    group,
                    samples=tuple(
                        replace(sample, tokens=sample.tokens[:0], log_probs=sample.log_probs[:0], spans=())
                        if is_empty(group.uid, index)
                        else sample
                        for index, sample in enumerate(group.samples)
                    ),
                )
                for group in groups(6, seed=step, version=step)
            ]
            # As they come from the queue.
            made = [decode_group(encode(group)) for group in made]
            metrics.append(trainer.train_step(step, step, made if rank == 0 else None))
            weights.append({name: tensor.float().numpy().copy() for name, tensor in trainer.weights()})
        return metrics, weights
