"""From a step's first pass to its last update a rank never waits for its device, on one rank and on two.

Needs two NVIDIA accelerators; `test_trainer_step.py` has the counterpart on a CPU: it counts what would wait.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from rljob_runtime.trainer.step_metrics import StepMetrics
from tests.support.runtime.rank_processes import RankProcesses
from tests.support.runtime.trained_steps import ALGORITHMS, settings
from tests.support.runtime.trainer_ranks import groups, model_folder, trainer_job, worker
from tests.support.runtime.two_devices import ACCELERATOR, device_of, needs_two, refuse_waits, waits_refused

RANKS = 2
PLAIN: dict[str, Any] = {"compute": {"compile": False}}
HALF: dict[str, Any] = {"policy": {"dtype": "bfloat16"}}
CLIP, PROXIMAL = ALGORITHMS["clip and kl"], ALGORITHMS["decoupled, sequence-mean"]

pytestmark = [needs_two, pytest.mark.timeout(300)]


def parallel(**fields: Any) -> dict[str, Any]:
    """In bfloat16, layers not compiled."""
    return HALF | PLAIN | {"parallel": fields}


ALONE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # The algorithm, and changes to the job.
    "as the accelerator has it by itself": (CLIP, HALF),
    "float32, in rectangles": (CLIP, {"compute": {"compile": False, "attention": "rectangles"}}),
    "proximal log-probabilities": (PROXIMAL, HALF | PLAIN),
    "activations computed again": (
        CLIP,
        {"policy": {"dtype": "bfloat16", "gradientCheckpointing": True}} | PLAIN,
    ),
}
SHARED: dict[str, dict[str, Any]] = {
    "weights gathered in each pass": HALF | {"compute": {"compile": False, "holdWeights": False}},
    "weights held": HALF | {"compute": {"compile": False, "holdWeights": True}},
    "a copy of the model on each": parallel(shardGroupSize=1),
    "layers split": parallel(tensorParallel=2),
    "samples shared where that pays": parallel(contextParallel={"hybrid": {}}),
    "samples shared by all-gather": parallel(
        contextParallel={"fixed": {"degree": 2}, "attention": "allGather"}
    ),
    "samples shared by Ulysses": parallel(contextParallel={"fixed": {"degree": 2}, "attention": "ulysses"}),
}


@pytest.mark.parametrize("name", ALONE)
def test_one_rank_does_not_wait_for_its_device(ranks: RankProcesses, tmp_path: Path, name: str) -> None:
    algorithm, changes = ALONE[name]
    check(ranks, 1, tmp_path, algorithm, changes)


@pytest.mark.parametrize("name", SHARED)
def test_two_ranks_do_not_wait_for_their_devices(ranks: RankProcesses, tmp_path: Path, name: str) -> None:
    check(ranks, 2, tmp_path, CLIP, SHARED[name])


def test_the_check_finds_a_wait(ranks: RankProcesses, tmp_path: Path) -> None:
    """On a thread of its own, too, which makes what the device gets next."""
    for told in ranks.run(1, _wait):
        assert told == ([] if ACCELERATOR == "cpu" else ["at once", "on a thread"])


def check(
    ranks: RankProcesses, count: int, folder: Path, algorithm: dict[str, Any], changes: dict[str, Any]
) -> None:
    """Steps of two updates, with several passes in each."""
    made = settings(algorithm, 64, ranks=count, accelerator=ACCELERATOR, **changes)
    made["parallel"] = {"maxTokensPerMicroBatch": 64} | changes.get("parallel", {})
    model = model_folder(trainer_job(), folder / "model")
    for metrics in ranks.run(count, _watched_steps, model, made):
        assert all(each.response_tokens > 0 and each.grad_norm > 0 for each in metrics)
        assert metrics[-1].tokens > 2 * 2 * 64


def _watched_steps(
    rank: int, world_size: int, store: Path, folder: Path, changes: dict[str, Any]
) -> list[StepMetrics]:
    """Train two steps twice, the second time without waits. The first time kernels are loaded, layers
    compiled and moments made."""
    job = trainer_job(**changes)
    with worker(job, folder, rank, world_size, store, device_index=device_of(rank)) as trainer:

        def step(number: int) -> StepMetrics:
            made = groups(6, seed=number % 2, version=number) if rank == 0 else None
            metrics: StepMetrics = trainer.train_step(number, number, made)
            return metrics

        for number in range(2):
            step(number)
        steps = trainer._steps
        # From the first thing that is made for the device to what is read from it.
        prepare, read = steps._prepare, steps._read_norms

        def prepared(*arguments: Any) -> Any:
            refuse_waits(True)
            return prepare(*arguments)

        def read_at_the_end(*arguments: Any) -> Any:
            refuse_waits(False)
            return read(*arguments)

        steps._prepare, steps._read_norms = prepared, read_at_the_end
        try:
            return [step(number) for number in range(2, 4)]
        finally:
            refuse_waits(False)


def _wait(rank: int, world_size: int, store: Path) -> list[str]:
    """Where waiting for the device raised."""
    from concurrent.futures import ThreadPoolExecutor

    device = torch.device("cuda" if ACCELERATOR == "nvidia" else "cpu")
    number, found = torch.ones(1, device=device), []

    def wait() -> None:
        float(number)

    with waits_refused(), ThreadPoolExecutor(1) as thread:
        ways = {"at once": wait, "on a thread": lambda: thread.submit(wait).result()}
        for name, way in ways.items():
            try:
                way()
            except RuntimeError as error:
                assert "synchroniz" in str(error)
                found.append(name)
    return found
