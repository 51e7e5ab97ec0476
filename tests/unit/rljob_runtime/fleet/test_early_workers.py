"""Which workers are begun before their job is known to be right, and what Ray is asked for."""

from typing import Any

import pytest

from rljob_api import RLJob
from rljob_runtime.fleet.early_workers import early_names
from rljob_runtime.fleet.shared_devices import shared_devices
from rljob_runtime.fleet.worker_options import rank_options, worker_options
from tests.support.jobs import job


def wanted(fast: int, heavy: int, engine: str = "vllm", **more: Any) -> RLJob:
    return RLJob.model_validate(
        job(
            {
                "pools.fastRollout.replicas": fast,
                "pools.heavyRollout.replicas": heavy,
                "training.rollout.engine": {engine: {}},
                **more,
            }
        )
    )


@pytest.mark.parametrize(
    ("made", "cores", "names"),
    [
        (wanted(2, 1), 8, ["fast-0", "fast-1", "heavy-0", "trainer-0"]),
        (wanted(1, 0, **{"pools.trainer.replicas": 2}), 3, ["fast-0", "trainer-0", "trainer-1"]),
        (wanted(1, 0, **{"pools.trainer.replicas": 2}), 2, ["fast-0"]),
        (wanted(2, 0), 2, ["fast-0", "fast-1"]),
        (wanted(2, 1), 2, []),
        (wanted(2, 1, "torch"), 8, []),
    ],
    ids=[
        "all",
        "a core each",
        "not all ranks",
        "none for ranks",
        "fewer cores than workers",
        "nothing large to import",
    ],
)
def test_workers_are_begun_early_where_they_have_much_to_import(
    made: RLJob, cores: int, names: list[str]
) -> None:
    assert [name for _, name in early_names(made, cores)] == names
    assert all(name.startswith(pool) for pool, name in early_names(made, cores))


@pytest.mark.parametrize(
    ("accelerator", "share", "gpus", "variables"),
    [
        ("cpu", False, None, {"OMP_NUM_THREADS": "3"}),
        ("nvidia", False, 2, {"OMP_NUM_THREADS": "3"}),
        ("nvidia", True, None, {"OMP_NUM_THREADS": "3", "CUDA_VISIBLE_DEVICES": "0,1"}),
    ],
    ids=["no accelerators", "of its own", "shared"],
)
def test_a_worker_has_the_resources_of_its_pool(
    accelerator: str, share: bool, gpus: int | None, variables: dict[str, str]
) -> None:
    pool = {"pools.heavyRollout.cpusPerWorker": 3}
    if accelerator != "cpu":
        # The engine's two parts share them.
        pool = {"pools.heavyRollout": {"cpusPerWorker": 7, "acceleratorsPerWorker": 2, "replicas": 1}}
    made = wanted(2, 1, accelerator=accelerator, **pool)
    options = worker_options(made, "heavy", "heavy-0", "a" * 56, shared_devices(made, ["0", "1"], share))
    assert options["resources"] == {"heavy_rollout": 1}
    assert options["num_cpus"] == 0
    assert options.get("num_gpus") == gpus
    assert options["runtime_env"] == {"env_vars": variables}
    assert options["scheduling_strategy"].node_id == "a" * 56


@pytest.mark.parametrize(
    ("accelerator", "share", "gpus", "variables"),
    [
        ("cpu", False, None, {"OMP_NUM_THREADS": "3"}),
        ("nvidia", False, 1, {"OMP_NUM_THREADS": "3"}),
        ("nvidia", True, None, {"OMP_NUM_THREADS": "3", "CUDA_VISIBLE_DEVICES": "1"}),
    ],
    ids=["no accelerators", "of its own", "shared"],
)
def test_a_rank_has_a_unit_of_its_pool_and_one_accelerator(
    accelerator: str, share: bool, gpus: int | None, variables: dict[str, str]
) -> None:
    pool = {"pools.trainer.cpusPerWorker": 3, "pools.trainer.replicas": 2}
    if accelerator != "cpu":
        pool = {"pools.trainer": {"cpusPerWorker": 7, "acceleratorsPerWorker": 2}}
    made = wanted(2, 1, accelerator=accelerator, **pool)
    options = rank_options(made, 1, "a" * 56, shared_devices(made, ["0", "1"], share))
    assert options["resources"] == {"trainer": 1}
    assert options["num_cpus"] == 0
    assert options.get("num_gpus") == gpus
    assert options["runtime_env"] == {"env_vars": variables}
    assert options["scheduling_strategy"].node_id == "a" * 56
