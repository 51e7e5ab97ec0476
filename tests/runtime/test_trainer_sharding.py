"""Models spread over ranks in groups: exact, whichever way, and checkpoints fit any of them.

The four ranks start once, and do one thing after the other.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rljob_api import RLJob
from rljob_runtime.trainer.checkpoint import newest
from rljob_runtime.trainer.step_metrics import StepMetrics
from tests.support.runtime.rank_processes import RankProcesses
from tests.support.runtime.trainer_ranks import (
    EXPERTS,
    groups,
    model_folder,
    stored_version,
    trainer_job,
    worker,
)

pytestmark = pytest.mark.timeout(300)
"""More than `RankProcesses` waits for a result."""

RANKS = 4
PAIRS: dict[str, Any] = {"parallel": {"shardGroupSize": 2}}
SINGLES: dict[str, Any] = {"parallel": {"shardGroupSize": 1}}
KL = {"kl": {"coefficient": 0.1}}
TAUGHT = {"distillation": {"teacher": {"path": "teacher"}, "coefficient": 0.5}}
DENSE: dict[str, Any] = {"algorithm": KL | TAUGHT, "schedule": {"promptsPerBatch": 3, "batchesPerStep": 2}}
SELECTIVE: dict[str, Any] = {"policy": {"activationCheckpointing": "selective"}}
BFLOAT16: dict[str, Any] = {"optimizer": {"stateFormat": "bfloat16"}}
FULL: dict[str, Any] = {"policy": {"activationCheckpointing": "full"}}
SHARED = {"maxTokensPerMicroBatch": 32, "contextParallel": {"hybrid": {}}}
"""Long samples are shared by ranks."""
SHARED_IN_PAIRS: dict[str, Any] = {"parallel": SHARED | PAIRS["parallel"]}
MIXTURE = DENSE | EXPERTS
ADAPTER: dict[str, Any] = {"adapter": {"rank": 4, "alpha": 8}, "rollout": {"engine": {"vllm": {}}}}
ADAPTED = DENSE | ADAPTER | {"model": {"headDim": 32}}


class Trained(NamedTuple):
    """What came of some steps."""

    metrics: list[StepMetrics]
    weights: dict[str, np.ndarray]
    """Those that engines would get; on rank 0."""
    held: int
    """Numbers of the model's weights that this rank holds."""
    moments: int
    """Bytes of AdamW's moments that this rank holds."""


def train(trainer: Any, first: int, last: int) -> Trained:
    """Steps first..last-1 of six groups each, which rank 0 has."""
    metrics = [
        trainer.train_step(step, step, groups(6, seed=step, version=step) if trainer._rank == 0 else None)
        for step in range(first, last)
    ]
    ref = stored_version(trainer, last)
    weights = load_file(next(Path(ref.location).glob("*.safetensors"))) if ref is not None else {}
    held = sum(_local(parameter).numel() for parameter in trainer._policy.parameters())
    moments = sum(
        _local(value).nbytes
        for state in trainer._optimizer.adamw.state.values()
        for name, value in state.items()
        if name != "step"
    )
    return Trained(metrics, {name: value.float().numpy() for name, value in weights.items()}, held, moments)


def _local(tensor: Any) -> torch.Tensor:
    """This rank's part."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


Trainings = dict[str, Trained]


class Site:
    """The folders of this file's test: models, and checkpoints by who wrote them."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def model(self, name: str) -> Path:
        return self.root / name

    def checkpoints(self, name: str) -> Path:
        return self.root / f"checkpoints of {name}"


def one(
    site: Site, settings: dict[str, Any], model: str, steps: tuple[int, int], **checkpoints: str
) -> Trained:
    """On one rank: go on from the checkpoint `begin`, train, write the checkpoint `end`."""
    return _work(0, 1, None, site, settings, model, steps, **checkpoints)


def _work(
    rank: int,
    ranks: int,
    store: Path | None,
    site: Site,
    settings: dict[str, Any],
    model: str,
    steps: tuple[int, int],
    begin: str = "",
    end: str = "",
    offload: bool = False,
) -> Trained:
    job = trainer_job(ranks=ranks, **settings)
    if offload:
        job = _offloaded(job)
    with worker(job, site.model(model), rank, ranks, store, teacher_folder=site.model("teacher")) as trainer:
        if begin:
            found = newest(site.checkpoints(begin))
            assert found is not None
            trainer.load_checkpoint(found)
        trained = train(trainer, *steps)
        if end:
            trainer.save_checkpoint(site.checkpoints(end), steps[1], b"")
        return trained


def _offloaded(job: RLJob) -> RLJob:
    """The job with cpuOffload, which is refused for CPUs."""
    spec, training = job.spec, job.spec.training
    parallel = training.parallel.model_copy(update={"cpu_offload": True})
    training = training.model_copy(update={"parallel": parallel})
    return job.model_copy(update={"spec": spec.model_copy(update={"training": training})})


def all_work(rank: int, ranks: int, store: Path, site: Site) -> Trainings:
    """What the four ranks do, by name."""
    do: Callable[..., Trained] = lambda number, *rest, **checkpoints: _work(  # noqa: E731
        rank, ranks, store.with_name(f"ranks{number}"), site, *rest, **checkpoints
    )
    return {
        "pairs": do(1, DENSE | PAIRS, "dense", (0, 2), end="pairs"),
        "singles": do(2, DENSE | SINGLES, "dense", (0, 2)),
        "experts in pairs": do(3, MIXTURE | PAIRS, "mixture", (0, 2), end="experts in pairs"),
        "pairs go on from all": do(4, DENSE | PAIRS, "dense", (2, 4), begin="one"),
        "in main memory": do(6, DENSE, "dense", (0, 2), offload=True),
        "in main memory, pairs": do(7, DENSE | PAIRS, "dense", (0, 2), offload=True),
        "selective": do(8, DENSE | PAIRS | SELECTIVE, "dense", (0, 2)),
        "bfloat16": do(9, DENSE | PAIRS | BFLOAT16, "dense", (0, 2), end="bfloat16"),
        "shared samples": do(10, DENSE | SHARED_IN_PAIRS | SELECTIVE, "dense", (0, 2)),
        "shared samples, in main memory": do(
            11, DENSE | SHARED_IN_PAIRS | FULL, "dense", (0, 2), offload=True
        ),
        "shared experts": do(12, MIXTURE | SHARED_IN_PAIRS, "mixture", (0, 2)),
        "an adapter in pairs": do(13, ADAPTED | PAIRS, "adapted", (0, 2), end="an adapter in pairs"),
        "an adapter, shared samples": do(14, ADAPTED | SHARED_IN_PAIRS | SELECTIVE, "adapted", (0, 2)),
        "an adapter goes on": do(15, ADAPTED, "adapted", (2, 3), begin="adapter"),
        "an adapter in main memory": do(
            16, ADAPTED, "adapted", (0, 2), end="an adapter in main memory", offload=True
        ),
        "an adapter goes on in main memory": do(
            17, ADAPTED | PAIRS, "adapted", (2, 3), begin="an adapter in main memory", offload=True
        ),
        "all go on from pairs": do(5, DENSE, "dense", (2, 4), begin="pairs"),
    }


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    found = Site(tmp_path_factory.mktemp("sharding"))
    model_folder(trainer_job(**DENSE), found.model("dense"))
    model_folder(trainer_job(model={"layers": 1, "attentionHeads": 8}, seed=1), found.model("teacher"))
    model_folder(trainer_job(**MIXTURE), found.model("mixture"))
    model_folder(trainer_job(**ADAPTED), found.model("adapted"))
    return found


@pytest.fixture(scope="module")
def alone(site: Site) -> Trainings:
    """The same on one rank."""
    return {
        "dense": one(site, DENSE, "dense", (0, 2), end="one"),
        "dense, two more": one(site, DENSE, "dense", (2, 4), begin="one"),
        "mixture": one(site, MIXTURE, "mixture", (0, 2), end="mixture"),
        "mixture, one more": one(site, MIXTURE, "mixture", (2, 3), begin="mixture"),
        "adapter": one(site, ADAPTED, "adapted", (0, 2), end="adapter"),
        "adapter, one more": one(site, ADAPTED, "adapted", (2, 3), begin="adapter"),
    }


@pytest.fixture(scope="module")
def four(ranks: RankProcesses, site: Site, alone: Trainings) -> Trainings:
    """Rank 0's; `alone` first, whose checkpoints they go on from."""
    found: Trainings = ranks.run(RANKS, all_work, site)[0]
    return found


def assert_same(left: Trained, right: Trained) -> None:
    for one, other in zip(left.metrics, right.metrics, strict=True):
        for name in ("loss", "policy_loss", "kl", "teacher_kl", "entropy", "grad_norm", "parity_max"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-4, abs=1e-5), name
        assert (one.tokens, one.response_tokens) == (other.tokens, other.response_tokens)
    assert left.weights.keys() == right.weights.keys()
    for name, value in left.weights.items():
        np.testing.assert_allclose(value, right.weights[name], atol=2e-5, err_msg=name)


EXACT = (
    "pairs",
    "singles",
    "in main memory",
    "in main memory, pairs",
    "selective",
    "shared samples",
    "shared samples, in main memory",
)


@pytest.mark.parametrize("name", EXACT)
def test_groups_train_what_one_rank_trains(alone: Trainings, four: Trainings, name: str) -> None:
    assert_same(four[name], alone["dense"])


def test_each_group_holds_one_copy(alone: Trainings, four: Trainings) -> None:
    whole = alone["dense"].held
    assert four["singles"].held == whole
    assert four["pairs"].held == pytest.approx(whole / 2, rel=0.05)
    assert four["all go on from pairs"].held == pytest.approx(whole / 4, rel=0.05)


@pytest.mark.parametrize("name", ["experts in pairs", "shared experts"])
def test_experts_are_sharded_like_all_else(alone: Trainings, four: Trainings, name: str) -> None:
    assert_same(four[name], alone["mixture"])


@pytest.mark.parametrize(
    "name", ["an adapter in pairs", "an adapter, shared samples", "an adapter in main memory"]
)
def test_an_adapter_is_sharded_like_all_else(alone: Trainings, four: Trainings, name: str) -> None:
    """The first steps have a KL penalty against the model without it."""
    assert_same(four[name], alone["adapter"])
    assert alone["adapter"].metrics[1].kl > 0
    # Moments of the adapter, and of nothing else.
    assert alone["adapter"].moments == 8 * sum(each.size for each in alone["adapter"].weights.values())


def test_an_adapter_goes_on_from_any_number_of_ranks(site: Site, alone: Trainings, four: Trainings) -> None:
    assert_same(four["an adapter goes on"], alone["adapter, one more"])
    assert_same(four["an adapter goes on in main memory"], alone["adapter, one more"])
    found = one(site, ADAPTED, "adapted", (2, 3), begin="an adapter in pairs")
    assert_same(found, alone["adapter, one more"])


@pytest.mark.parametrize("name", ["pairs go on from all", "all go on from pairs"])
def test_checkpoints_fit_other_groups(alone: Trainings, four: Trainings, name: str) -> None:
    assert_same(four[name], alone["dense, two more"])


def test_one_rank_goes_on_from_groups(site: Site, alone: Trainings, four: Trainings) -> None:
    assert_same(one(site, DENSE, "dense", (2, 4), begin="pairs"), alone["dense, two more"])
    assert_same(one(site, MIXTURE, "mixture", (2, 3), begin="experts in pairs"), alone["mixture, one more"])


def test_moments_in_bfloat16_are_saved_and_loaded(site: Site, alone: Trainings, four: Trainings) -> None:
    """Any format goes on from either."""
    exact, rounded = alone["dense"].metrics, four["bfloat16"].metrics
    assert rounded[0].loss == pytest.approx(exact[0].loss, rel=1e-4)
    assert rounded[1].loss == pytest.approx(exact[1].loss, rel=1e-2)
    assert four["bfloat16"].moments == 4 * four["bfloat16"].held
    assert four["pairs"].moments == 8 * four["pairs"].held
    for settings in (DENSE, DENSE | BFLOAT16):
        for begin in ("one", "bfloat16"):
            found = one(site, settings, "dense", (2, 4), begin=begin)
            expected = alone["dense, two more"]
            assert found.moments == (4 if "optimizer" in settings else 8) * found.held
            for name, value in expected.weights.items():
                np.testing.assert_allclose(found.weights[name], value, atol=2e-4, err_msg=name)
