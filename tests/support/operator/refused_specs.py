"""RLJobs for the tests of what the operator refuses: changes of a plain one, and what goes into templates."""

from collections.abc import Mapping
from typing import Any

from rljob_api import RLJob, Spec
from tests.support.jobs import job

POOLS = "spec.pools"
HEAD = f"{POOLS}.head.template.spec"
TRAINER = f"{POOLS}.trainer.template.spec"
"""Paths in the RLJob."""


def spec(changes: Mapping[str, Any]) -> Spec:
    """A plain RLJob's spec with these fields changed, each named by its path below spec."""
    return RLJob.model_validate(job({"image": "rljob/runtime:cpu", **changes})).spec


def template(pool: str, **pod: Any) -> dict[str, Any]:
    """The change that gives a pool's template this pod spec."""
    return {f"pools.{pool}.template": {"spec": pod}}


def container(pool: str, name: str, **fields: Any) -> dict[str, Any]:
    """The change that gives a pool's template this container."""
    return template(pool, containers=[{"name": name, **fields}])
