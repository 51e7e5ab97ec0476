"""Layers split over the ranks of tensor groups: what is trained is what one rank trains."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from rljob_api import RLJob
from rljob_runtime.driver.export import _write_weights
from rljob_runtime.parallel.rank_layout import TENSOR
from rljob_runtime.trainer.checkpoint import newest
from rljob_runtime.trainer.checkpoint_tensors import SavedPolicy
from rljob_runtime.trainer.log_probs import Entropy, Scoring
from rljob_runtime.trainer.sampling_distribution import Distribution
from rljob_runtime.trainer.step_metrics import StepMetrics
from tests.support.runtime.hdp_steps import Case, assert_same_metrics, join, take_step, worst
from tests.support.runtime.rank_processes import RankProcesses
from tests.support.runtime.tiny_models import hdp_model, tiny_model
from tests.support.runtime.trainer_ranks import (
    EXPERTS,
    SERVED,
    groups,
    model_folder,
    stored_version,
    trainer_job,
    worker,
)

RANKS = 6
EXACT = 1e-14
KL = {"kl": {"coefficient": 0.1}, "entropyCoefficient": 0.01}
DENSE: dict[str, Any] = {"algorithm": KL, "schedule": {"promptsPerBatch": 3, "batchesPerStep": 2}}
PASS_TOKENS = 128
"""An update has some 300: several passes, of which one pair makes more than each of two."""
PAIRS: dict[str, Any] = {"tensorParallel": 2}

pytestmark = pytest.mark.timeout(300)


def model_of(family: str, folder: Path) -> Path:
    """`family`: as of `hdp_model`; "tied" has one tensor for its embeddings and its output head."""
    if family == "tied":
        return tiny_model(folder, "qwen3", tied=True)
    return tiny_model(folder, "qwen3") if family == "qwen3" else hdp_model(folder, family)


@pytest.mark.parametrize(
    "family", ["qwen3", "tied", "qwen2", "llama", "gemma3, window 9", "gemma2, window 9"]
)
def test_gradients_are_those_of_one_rank(ranks: RankProcesses, tmp_path: Path, family: str) -> None:
    """Two updates, on two pairs with different samples, of one family on one pair too, and with a teacher."""
    case = Case(model_of(family, tmp_path / "model"), batches=2, algorithm=KL, pass_tokens=PASS_TOKENS)
    if family == "qwen3":
        teacher = hdp_model(tmp_path / "teacher", "llama")
        learned = KL | {"distillation": {"teacher": {"path": "teacher"}}}
        case = replace(case, algorithm=learned, teacher=teacher)
    metrics, gradients = ranks.run(1, take_step, case)[0]
    for world_size in (2, 4) if family == "qwen3" else (4,):
        found = ranks.run(world_size, take_step, replace(case, tensor=2))
        assert worst(found[0][1][:1], gradients[:1]) <= EXACT, world_size
        # The second one begins with weights that rounding has moved, and AdamW divides by small numbers.
        assert worst(found[0][1][1:], gradients[1:]) <= 1e-7, world_size
        for each, _ in found:
            assert_same_metrics(each, metrics, 1e-6, near=1e-6)


def test_layers_that_are_compiled(ranks: RankProcesses, tmp_path: Path) -> None:
    """With the group's sums in them; they are computed again, in passes of different lengths."""
    case = Case(tiny_model(tmp_path / "model"), pass_tokens=PASS_TOKENS)
    metrics, gradients = ranks.run(1, take_step, case)[0]
    found = ranks.run(2, take_step, replace(case, tensor=2, compiled=True, recompute=True))
    assert worst(found[0][1], gradients) <= EXACT
    for each, _ in found:
        assert_same_metrics(each, metrics)


def test_a_teacher_that_a_server_has(ranks: RankProcesses, tmp_path: Path) -> None:
    """What it said of samples reaches both ranks of each pair."""
    case = Case(tiny_model(tmp_path / "model"), algorithm=SERVED, served=True, pass_tokens=PASS_TOKENS)
    metrics, gradients = ranks.run(1, take_step, case)[0]
    found = ranks.run(4, take_step, replace(case, tensor=2))
    assert worst(found[0][1], gradients) <= EXACT
    for each, _ in found:
        assert_same_metrics(each, metrics)
    assert metrics.teacher_kl != 0


DISTRIBUTIONS = {
    "as it is": (Distribution(), None),
    "temperature": (Distribution(0.7), None),
    "top-k": (Distribution(0.9, 5), None),
    "top-p": (Distribution(1.0, 0, 0.8), None),
    "all, capped": (Distribution(1.3, 9, 0.9), 0.5),
    "capped": (Distribution(0.7), 0.5),
}
"""And the cap of logits."""


@pytest.mark.parametrize("entropy", get_args(Entropy))
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_scores_by_parts_of_the_vocabulary(ranks: RankProcesses, name: str, entropy: Entropy) -> None:
    """Of embeddings with a token for padding and a head with a bias, against autograd on all logits: in one
    chunk, whose logits are kept, and in several."""
    for world_size, logits in ((2, 10**6), (3, 40)):
        distribution, cap = DISTRIBUTIONS[name]
        how = Scoring(distribution, entropy, logits, cap=cap)
        expected, found = ranks.run(world_size, _scored_by_parts, how)[-1]
        assert expected.keys() == found.keys()
        for what, value in expected.items():
            np.testing.assert_allclose(found[what], value, atol=1e-14, rtol=1e-13, err_msg=what)


def _scored_by_parts(
    rank: int, world_size: int, store: Path, how: Scoring
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """Scores and gradients of one rank with all of a model, and of ranks with parts of it."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    from rljob_runtime.trainer.log_probs import plain_scores
    from rljob_runtime.trainer.tensor_parallel import _keep_part
    from rljob_runtime.trainer.vocabulary import scores_of_parts

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(24, 6, padding_idx=13, dtype=torch.float64)
            self.between = torch.nn.Linear(6, 6, dtype=torch.float64)
            self.head = torch.nn.Linear(6, 24, dtype=torch.float64)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.between(self.words(tokens)[0]).tanh()
            return found

    def numbers(tensor: Any) -> NDArray[Any]:
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        return whole.detach().numpy()  # type: ignore[no-any-return]

    join(rank, world_size, store)
    mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=(TENSOR,))
    torch.manual_seed(0)
    whole = Model()
    parts = copy.deepcopy(whole)
    for module in (parts.words, parts.head):
        _keep_part(module, mesh, {})
    # With a row for every token of the vocabulary, and one more.
    tokens = torch.cat([torch.arange(24), torch.tensor([13])])[None]
    targets = torch.randint(0, 24, (25,))
    slopes = torch.randn(2, 25, dtype=torch.float64)
    results = []
    for model in (whole, parts):
        hidden = model(tokens)
        if model is whole:
            found = plain_scores(whole.head(hidden), targets, how)
        else:
            found = scores_of_parts(hidden, parts.head, targets, how)
        loss = (found.log_probs * slopes[0]).sum()
        if how.entropy == "gradient":
            assert found.entropies is not None
            loss = loss + (found.entropies * slopes[1]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        told = {name: numbers(each.grad) for name, each in model.named_parameters()}
        told["log-probabilities"] = numbers(found.log_probs)
        if found.entropies is not None:
            told["entropies"] = numbers(found.entropies)
        results.append(told)
    return results[0], results[1]


class Trained(NamedTuple):
    """What came of some steps on a rank."""

    metrics: list[StepMetrics]
    weights: dict[str, NDArray[Any]]
    """Those that engines would get, from all ranks together."""
    published: dict[str, NDArray[Any]]
    """Those that it published; none but rank 0 does."""
    whole_here: dict[str, NDArray[Any]]
    """Its numbers of the parameters that tensor groups do not split, and of their moments."""


class Site:
    """A folder with a model, and checkpoints by name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.model = root / "model"

    def checkpoints(self, name: str) -> Path:
        return self.root / f"checkpoints of {name}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    found = Site(tmp_path_factory.mktemp("tensor"))
    model_folder(trainer_job(**DENSE), found.model)
    return found


def job_of(ranks: int, parallel: dict[str, Any], changes: dict[str, Any] | None = None) -> RLJob:
    parallel = {"maxTokensPerMicroBatch": PASS_TOKENS} | parallel
    return trainer_job(ranks=ranks, parallel=parallel, **DENSE, **(changes or {}))


def work(
    rank: int,
    world_size: int,
    store: Path,
    site: Site,
    job: RLJob,
    steps: tuple[int, int] = (0, 2),
    begin: str = "",
    end: str = "",
) -> Trained:
    """Train steps, from the checkpoint `begin` to the checkpoint `end`."""
    import torch
    from safetensors.torch import load_file as load_tensors
    from torch.distributed.tensor import DTensor

    def numbers(tensor: Any) -> NDArray[Any]:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        return local.detach().float().numpy().copy()  # type: ignore[no-any-return]

    with worker(job, site.model, rank, world_size, store) as trainer:
        if begin:
            found = newest(site.checkpoints(begin))
            assert found is not None
            trainer.load_checkpoint(found)
        metrics = [
            trainer.train_step(step, step, groups(6, seed=step, version=step) if rank == 0 else None)
            for step in range(*steps)
        ]
        ref = stored_version(trainer, steps[1])
        if end:
            trainer.save_checkpoint(site.checkpoints(end), steps[1], b"")
        whole_here = {}
        for name, parameter in trainer._policy.model.named_parameters():
            if isinstance(parameter, DTensor) and parameter.placements[-1].is_replicate():
                whole_here[name] = numbers(parameter)
                trained = parameter.requires_grad and trainer._optimizer.updates
                for moment in ("exp_avg", "exp_avg_sq") if trained else ():
                    state = trainer._optimizer.adamw.state[parameter][moment]
                    assert isinstance(state, torch.Tensor)
                    whole_here[f"{moment} of {name}"] = numbers(state)
        published = load_tensors(next(Path(ref.location).glob("*.safetensors"))) if ref is not None else {}
        adapter = job.spec.training.adapter
        weights = trainer.weights() if adapter is None else trainer._adapter_weights(adapter)
        return Trained(
            metrics,
            {name: numbers(tensor) for name, tensor in weights},
            {name: numbers(tensor) for name, tensor in published.items()},
            whole_here,
        )


@pytest.fixture(scope="module")
def alone(ranks: RankProcesses, site: Site) -> Trained:
    """Two steps of two updates on one rank; its checkpoint is "one"."""
    found: Trained = ranks.run(1, work, site, job_of(1, {}), (0, 2), "", "one")[0]
    return found


@pytest.fixture(scope="module")
def one_more(ranks: RankProcesses, site: Site, alone: Trained) -> Trained:
    """A step further on one rank: its first update shows weights that are not those of the checkpoint, its
    second one moments."""
    found: Trained = ranks.run(1, work, site, job_of(1, {}), (2, 3), "one")[0]
    return found


@pytest.fixture(scope="module")
def two_pairs(ranks: RankProcesses, site: Site) -> list[Trained]:
    """The steps of `alone` on two pairs; their checkpoint is "two pairs"."""
    return ranks.run(4, work, site, job_of(4, PAIRS), (0, 2), "", "two pairs")


def assert_same(one: Trained, other: Trained) -> None:
    """AdamW divides by small numbers: single weights with hardly a gradient may go another way, by no more
    than a tenth of the learning rate."""
    for left, right in zip(one.metrics, other.metrics, strict=True):
        assert_same_metrics(left, right, 1e-4, near=1e-6)
    assert one.weights.keys() == other.weights.keys()
    for name, weight in other.weights.items():
        np.testing.assert_allclose(one.weights[name], weight, atol=1e-4, err_msg=name)
        assert np.abs(one.weights[name] - weight).mean() < 1e-6, name


WAYS: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "one pair": (2, PAIRS, {}),
    "two pairs, each with a copy": (4, PAIRS | {"shardGroupSize": 2}, {}),
    "three pairs, whose parts are not even": (6, PAIRS, {}),
    "weights held": (4, PAIRS, {"compute": {"holdWeights": True}}),
    "computed again": (4, PAIRS, {"policy": {"activationCheckpointing": "full"}}),
    "partly computed again": (4, PAIRS, {"policy": {"activationCheckpointing": "selective"}}),
}


@pytest.mark.parametrize("name", WAYS)
def test_groups_train_what_one_rank_trains(
    ranks: RankProcesses, site: Site, alone: Trained, name: str
) -> None:
    count, parallel, changes = WAYS[name]
    assert_all_same(ranks.run(count, work, site, job_of(count, parallel, changes)), alone)


def test_two_pairs_train_what_one_rank_trains(alone: Trained, two_pairs: list[Trained]) -> None:
    assert_all_same(two_pairs, alone)


def assert_all_same(found: list[Trained], alone: Trained) -> None:
    """All ranks trained that, and rank 0 published it."""
    assert_same(found[0], alone)
    assert [bool(each.published) for each in found] == [True] + [False] * (len(found) - 1)
    for weight, value in found[0].weights.items():
        np.testing.assert_array_equal(found[0].published[weight], value, err_msg=weight)
    for metrics in zip(*(each.metrics for each in found), strict=True):
        assert len({(each.loss, each.grad_norm, each.tokens, each.passes.imbalance) for each in metrics}) == 1


def test_what_is_not_split_stays_one_in_a_group(ranks: RankProcesses, site: Site) -> None:
    """Also where moments are rounded at random, and after a checkpoint of single ranks, which have generators
    of their own."""
    changes = {"optimizer": {"stateFormat": "bfloat16"}}
    ranks.run(2, work, site, job_of(2, {}, changes), (0, 1), "", "two ranks, rounded")
    job = job_of(4, PAIRS, changes)
    for steps, begin in (((0, 1), ""), ((1, 2), "two ranks, rounded")):
        found = ranks.run(4, work, site, job, steps, begin)
        assert len(found[0].whole_here) == 3 * 9
        for first, second in (found[:2], found[2:]):
            for name, value in first.whole_here.items():
                np.testing.assert_array_equal(second.whole_here[name], value, err_msg=name)


@pytest.mark.parametrize(
    ("count", "parallel", "begin"),
    [
        (2, PAIRS, "one"),
        (4, PAIRS, "one"),
        (1, {}, "two pairs"),
        (3, {}, "two pairs"),
        (6, PAIRS, "two pairs"),
    ],
)
def test_checkpoints_fit_other_groups(
    ranks: RankProcesses,
    site: Site,
    one_more: Trained,
    two_pairs: list[Trained],
    count: int,
    parallel: dict[str, Any],
    begin: str,
) -> None:
    assert_same(ranks.run(count, work, site, job_of(count, parallel), (2, 3), begin)[0], one_more)


def test_an_export_has_what_was_published(site: Site, two_pairs: list[Trained], tmp_path: Path) -> None:
    assert_exported(site, two_pairs[0], tmp_path)


def assert_exported(site: Site, found: Trained, folder: Path) -> None:
    """The checkpoint "two pairs" is written to `folder` as what was published."""
    source = newest(site.checkpoints("two pairs"))
    assert source is not None
    (folder / "config.json").write_bytes((site.model / "config.json").read_bytes())
    _write_weights(SavedPolicy(source), folder, "float32", {})
    exported = {}
    for file in folder.glob("*.safetensors"):
        exported |= load_file(file)
    assert exported.keys() == found.weights.keys()
    for name, weight in found.weights.items():
        np.testing.assert_array_equal(exported[name], weight, err_msg=name)


@pytest.mark.parametrize(
    ("changes", "parallel", "message"),
    [
        (
            {"model": {"attentionHeads": 6, "keyValueHeads": 2}},
            {"tensorParallel": 3},
            "training.parallel.tensorParallel is 3, which does not divide the model's num_key_value_heads 2 "
            "and intermediate_size 64 (config.json): set one of 1, 2",
        ),
        (
            EXPERTS | {"model": EXPERTS["model"] | {"attentionHeads": 6, "keyValueHeads": 3}},
            {"tensorParallel": 3},
            "experts 4 (config.json): set one of 1",
        ),
    ],
)
def test_models_that_cannot_be_split(
    ranks: RankProcesses, tmp_path: Path, changes: dict[str, Any], parallel: dict[str, Any], message: str
) -> None:
    folder = model_folder(trainer_job(**changes), tmp_path / "model")
    count = parallel["tensorParallel"]
    job = trainer_job(ranks=count, parallel=parallel)
    for done, text in ranks.outcomes(count, _set_up, folder, job):
        assert not done
        assert message in text


def _set_up(rank: int, world_size: int, store: Path, folder: Path, job: RLJob) -> None:
    with worker(job, folder, rank, world_size, store):
        pass
