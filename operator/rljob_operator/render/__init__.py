"""From an RLJob to the Kubernetes objects that the operator applies for it. Pure.

Guarantees: the same job and KubeRay give the same objects, byte for byte; a spec that `refusals` finds
nothing in can be rendered, and nothing that KubeRay would refuse without a word comes out.
"""

from typing import Any

from rljob_api import Spec
from rljob_operator.plan.observed import Queue
from rljob_operator.render import access
from rljob_operator.render.keys import key_secret
from rljob_operator.render.kuberay import KubeRay, UnsupportedKubeRay
from rljob_operator.render.names import JobKey
from rljob_operator.render.pods import head_account
from rljob_operator.render.raycluster import ray_cluster
from rljob_operator.render.refusals import refusals

__all__ = [
    "JobKey",
    "KubeRay",
    "UnsupportedKubeRay",
    "access_objects",
    "key_secret",
    "objects",
    "ray_cluster",
    "refusals",
]


def access_objects(key: JobKey, spec: Spec) -> list[dict[str, Any]]:
    """What lasts as long as the job and its pods need before they start, but for the Secret with its keys; in
    the order of creation."""
    account = head_account(key, spec)
    own = [access.service_account(key)] if account == key.driver_account else []
    return [*own, access.role(key), access.role_binding(key, account), access.network_policy(key)]


def objects(
    key: JobKey, spec: Spec, attempt: int, kuberay: KubeRay, queue: Queue | None = None
) -> list[dict[str, Any]]:
    """Everything that an attempt of the job needs, in the order of creation. The Secret has no values."""
    cluster = ray_cluster(key, spec, attempt, kuberay, queue)
    return [key_secret(key, None), *access_objects(key, spec), cluster]
