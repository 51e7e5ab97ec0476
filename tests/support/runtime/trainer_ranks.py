"""Builders for tests of the trainer: jobs, groups, and a rank of this process."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from rljob_api import RLJob
from rljob_runtime.samples import Group, Sample, Span

VOCABULARY = 32
EXPERTS: dict[str, Any] = {
    "model": {
        "architecture": "qwen3_moe",
        "headDim": 32,
        "experts": {"count": 4, "perToken": 2, "intermediateSize": 32},
    },
    "rollout": {"engine": {"vllm": {}}},
}
"""Changes that make `trainer_job`'s model a mixture of experts."""


def trainer_job(algorithm: dict[str, Any] | None = None, **changes: Any) -> RLJob:
    """A job with a tiny random model on CPUs. `changes` are to `training`, `model` to the random model;
    `ranks` is how many train it, `accelerator` what on."""
    pools = {"trainer": {"replicas": changes.pop("ranks", 1)}}
    model = {"random": {"hiddenSize": 32, "intermediateSize": 64, "headDim": 16} | changes.pop("model", {})}
    training = {
        "model": model | changes.pop("policy", {}),
        "tokenizer": {"characters": {}},
        "data": {"generated": {"task": "copy"}, "maxPromptTokens": 16},
        "reward": {"function": "rljob_runtime.rewards.tasks:copy"},
        "rollout": {"engine": {"torch": {}}, "samplesPerPrompt": 4, "maxResponseTokens": 48},
        "algorithm": algorithm or {},
        "optimizer": {"learningRate": 1e-3},
        "schedule": {"totalSteps": 10, "promptsPerBatch": 4},
        "parallel": {"maxTokensPerMicroBatch": 64},
    }
    accelerator = changes.pop("accelerator", "cpu")
    if accelerator != "cpu":
        training["rollout"]["engine"] = {"vllm": {}}
    for name, value in changes.items():
        training[name] = training.get(name, {}) | value if isinstance(value, dict) else value
    return RLJob.model_validate(
        {
            "metadata": {"name": "test"},
            "spec": {"accelerator": accelerator, "pools": pools, "training": training},
        }
    )


def with_ranks(job: RLJob, count: int, **parallel: Any) -> RLJob:
    """The job with so many trainer ranks, and these fields under training.parallel."""
    described = job.model_dump(by_alias=True, exclude_none=True)
    described["spec"]["training"]["parallel"] |= parallel
    described["spec"]["pools"]["trainer"]["replicas"] = count
    return RLJob.model_validate(described)


SERVED: dict[str, Any] = {
    "distillation": {"teacher": {"server": {"url": "http://teacher:8000", "model": "teacher"}}}
}
"""An algorithm that learns from a teacher of a server; the samples say what it said."""


def taught(group: Group, log_probs: Callable[[Group, Sample], NDArray[Any]]) -> Group:
    """The group with what a served teacher says of each response that has a reward."""
    return replace(
        group,
        samples=tuple(
            each
            if each.failure is not None
            else replace(each, teacher_log_probs=log_probs(group, each).astype(np.float32))
            for each in group.samples
        ),
    )


def made_up(group: Group, sample: Sample) -> NDArray[Any]:
    """Log-probabilities of a teacher that there is not."""
    rng = np.random.default_rng([group.uid, len(sample.tokens)])
    return -4 + 0.5 * rng.standard_normal(len(sample.tokens))


def groups(count: int, seed: int = 0, samples: int = 4, longest: int = 40, version: int = 0) -> list[Group]:
    """Random groups, uids from 0; every seventh response has no reward, and log-probabilities are made up."""
    rng = np.random.default_rng(seed)
    return [
        Group(
            uid=uid,
            epoch=0,
            row=uid,
            prompt=rng.integers(0, VOCABULARY, int(rng.integers(1, 12))).astype(np.int32),
            samples=tuple(_sample(rng, uid * samples + index, longest, version) for index in range(samples)),
            dispatch_version=version,
        )
        for uid in range(count)
    ]


def _sample(rng: np.random.Generator, number: int, longest: int, version: int) -> Sample:
    length = int(rng.integers(1, longest + 1))
    return Sample(
        tokens=rng.integers(0, VOCABULARY, length).astype(np.int32),
        log_probs=(-3.5 + 0.3 * rng.standard_normal(length)).astype(np.float32),
        spans=(Span(version, 0, length),),
        finish="stop",
        reward=float(rng.random()),
        failure="timeout after 10 s" if number % 7 == 3 else None,
    )


def stored_version(trainer: Any, version: int) -> Any:
    """Publish the weights of a rank as `version`, and write them: a `WeightRef` on rank 0, None on others."""
    trainer.publish(version)
    return trainer.write_version() if trainer._rank == 0 else None


@contextmanager
def worker(
    job: RLJob,
    model_folder: Path,
    rank: int = 0,
    world_size: int = 1,
    store: Path | None = None,
    **options: Any,
) -> Iterator[Any]:
    """A rank that is set up; ranks meet at the file `store`."""
    import torch.distributed as dist

    from rljob_runtime.trace.record.event_log import EventLog
    from rljob_runtime.trainer.rank import TrainerWorker

    with tempfile.TemporaryDirectory(prefix="trainer-test-") as folder:
        made = TrainerWorker(
            job,
            model_folder,
            rank,
            world_size,
            options.pop("weights_root", Path(folder) / "weights"),
            options.pop("keep_versions", 2),
            EventLog(options.pop("events", None), rank, f"trainer-{rank}", "trainer"),
            options.pop("total_updates", 10),
            **options,
        )
        try:
            made.setup(dist.FileStore(str(store or Path(folder) / "ranks"), world_size))
            yield made
        finally:
            made.close()


def model_folder(job: RLJob, folder: Path) -> Path:
    """The job's random model, on disk."""
    from rljob_runtime.trainer.model import save_initial_model

    save_initial_model(job, VOCABULARY, 0, 1, 2, folder)
    return folder
