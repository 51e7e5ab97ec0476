"""Names of the objects that are made for a job.

Guarantees: deterministic; different for different jobs and attempts; within the limits of Kubernetes and
KubeRay for every name that the API accepts for an RLJob.
"""

import re
from dataclasses import dataclass

from rljob_operator.plan.attempt import cluster_name

HEAD_CONTAINER = "ray-head"
WORKER_CONTAINER = "ray-worker"
DRIVER_CONTAINER = "driver"
REWARDS_CONTAINER = "rewards"

MAX_CLUSTER_NAME = 53
"""KubeRay refuses a RayCluster with a longer name, in an Event alone."""
_DNS_1035 = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")


@dataclass(frozen=True, slots=True)
class JobKey:
    """Which RLJob the objects are made for, and belong to."""

    namespace: str
    name: str
    uid: str

    def cluster(self, attempt: int) -> str:
        """Name of the RayCluster of an attempt; ValueError where KubeRay would refuse it."""
        name = cluster_name(self.name, attempt)
        if len(name) > MAX_CLUSTER_NAME or not _DNS_1035.match(name):
            raise ValueError(
                f"RayCluster {name}: the name must be at most {MAX_CLUSTER_NAME} lower-case letters, digits "
                "and dashes, begin with a letter, and not end with a dash"
            )
        return name

    @property
    def driver_account(self) -> str:
        """Name of the driver's ServiceAccount, Role and RoleBinding."""
        return f"{self.name}-driver"

    @property
    def network_policy(self) -> str:
        """Name of the NetworkPolicy around the job's pods."""
        return f"{self.name}-pods"

    @property
    def key_secret(self) -> str:
        """Name of the Secret with the job's keys. The UID tells those of an earlier job of this name."""
        return f"{self.name}-keys-{self.uid.partition('-')[0]}"
