"""A job of two pools that is simulated in little time."""

from pathlib import Path
from typing import Any

import yaml

from rljob_api import RLJob
from rljob_runtime.simulate.assumptions import Assumptions
from rljob_runtime.simulate.site import Site
from tests.support.jobs import job

SMALL: dict[str, Any] = {
    "training.rollout": {"maxResponseTokens": 64, "samplesPerPrompt": 2, "maxRunningRequests": 8},
    "training.data": {"generated": {"task": "copy"}, "maxPromptTokens": 8},
    "pools.fastRollout.replicas": 2,
    "pools.heavyRollout.replicas": 1,
}


def manifest(folder: Path, changes: dict[str, Any] | None = None) -> Path:
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(job(SMALL | (changes or {}))))
    return file


def site(changes: dict[str, Any] | None = None, steps: int = 3) -> Site:
    return Site(RLJob.model_validate(job(SMALL | (changes or {}))).spec, Assumptions(), steps)
