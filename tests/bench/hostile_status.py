"""What a job brings about that writes anything it likes into its own status, on a real API server.

As the account of a running job's driver: a patch of each field of the status but `training`, then random
ones, of one to four fields each. First without the chart's admission policy, where many are taken and the
operator has to bear them, then with it. Another job runs beside it.

    python -m tests.bench.hostile_status
"""

import random
import tempfile
import time
from pathlib import Path
from typing import Any

from rljob_api.errors import yaml_fields
from rljob_api.status import Status
from tests.bench.figures import Figure, parser, record
from tests.chart.helm import render
from tests.support.operator.operator_site import JobClient, running_operator, until
from tools.cluster import ApiError, Cluster
from tools.cluster.api import Api

PATCHES = 1000
NAMESPACE = "hostile"
FIELDS = sorted(set(yaml_fields(Status)) - {"training"})
TIMES = ("x", "9999-12-31T23:59:59Z", "1970-01-01T00:00:00Z", "2026-13-99T00:00:00Z")
NAMES = ("other-1", "math-2", "math-1", "x")
ADMISSION = "/apis/admissionregistration.k8s.io/v1"

Patch = dict[str, Any]


def value(field: str, rng: random.Random) -> Any:
    """A value for a field of the status: one that it may have, more often than not, and null now and then."""
    if rng.random() < 0.15:
        return None
    if field == "conditions":
        kinds = rng.sample(["Accepted", "Complete", "Failed", "Running", "Suspended", "PodsReady"], 2)
        time_of = {"lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "Suspending", "message": "x"}
        return [{"type": kind, "status": rng.choice(["True", "False"]), **time_of} for kind in kinds]
    if field == "pools":
        sizes = {name: rng.choice([0, 1, 10**6]) for name in ("desired", "current", "ready")}
        return [{"name": "fastRollout", **sizes}]
    if field == "scaleDowns":
        victims = [f"{name}-fast-rollout-0" for name in NAMES]
        return [{"pool": "fastRollout", "victims": victims, "replicas": 0, "askedTime": rng.choice(TIMES)}]
    if field == "phase":
        return rng.choice(["Complete", "Failed", "Suspended", "Pending"])
    if field.endswith("Time"):
        return rng.choice(TIMES)
    if field in ("attempt", "failures", "restarts", "observedGeneration", "fastRolloutReplicas"):
        return rng.choice([0, 1, 2, 3, 99, 2**31, -1])
    return rng.choice(NAMES)


def patches(rng: random.Random) -> list[Patch]:
    """One of each field, then random ones."""
    single = [{field: value(field, rng)} for field in FIELDS]
    mixed = [rng.sample(FIELDS, rng.randint(1, 4)) for _ in range(PATCHES - len(single))]
    return single + [{field: value(field, rng) for field in each} for each in mixed]


class Attacker:
    """Writes as the driver of `math`."""

    def __init__(self, cluster: Cluster) -> None:
        self._path = f"/apis/rljob.dev/v1alpha1/namespaces/{NAMESPACE}/rljobs/math"
        self._api = Api.of_kubeconfig(cluster.kubeconfig_of(NAMESPACE, "math-driver"))

    def changed(self, patch: Patch) -> bool:
        """Whether the API server took the patch, and the status is another one for it."""
        before = self._api.request("GET", self._path)["status"]
        try:
            after = self._api.request("PATCH", f"{self._path}/status", {"status": patch})["status"]
        except ApiError as error:
            if error.status not in (400, 403, 422):
                raise
            return False
        # What the operator puts right meanwhile is none of the patch's fields.
        return any(before.get(field) != after.get(field) for field in patch)

    def all(self, seed: int) -> tuple[int, float]:
        """How many patches changed the status, and how long all took, in seconds."""
        began = time.monotonic()
        return sum(self.changed(each) for each in patches(random.Random(seed))), time.monotonic() - began


def touched(cluster: Cluster, since: int) -> dict[str, int]:
    """Requests since the `since`-th that made or deleted something, by whose it is, without RLJobs and
    Leases."""
    found = {"math": 0, "other": 0}
    for event in cluster.audit_events()[since:]:
        ref = event.get("objectRef", {})
        if event["verb"] not in ("create", "delete", "deletecollection") or ref.get("namespace") != NAMESPACE:
            continue
        if ref.get("resource") in ("rayclusters", "pods", "services", "secrets", "roles", "rolebindings"):
            found["other" if ref.get("name", "").startswith("other") else "math"] += 1
    return found


def begin_policy(cluster: Cluster, attacker: Attacker) -> None:
    policy, binding = [each for each in render() if "AdmissionPolicy" in each["kind"]]
    cluster.api.request("POST", f"{ADMISSION}/validatingadmissionpolicies", policy)
    cluster.api.request("POST", f"{ADMISSION}/validatingadmissionpolicybindings", binding)
    # The API server reads its policies now and then.
    until(lambda: not attacker.changed({"failures": random.randrange(10**6)}), "the policy in force")


def main() -> None:
    """Measure and record."""
    out = parser(__doc__).parse_args().out
    with Cluster(audit=True) as cluster, tempfile.TemporaryDirectory() as folder:
        cluster.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        cluster.wait(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", bool, "a default service account")
        with running_operator(cluster, Path(folder), NAMESPACE):
            math, other = (JobClient(cluster, NAMESPACE, name) for name in ("math", "other"))
            for job in (math, other):
                job.create()
                job.wait_phase("Running")
            attacker = Attacker(cluster)
            begun = len(cluster.audit_events())
            taken, seconds = attacker.all(seed=1)
            for job in (math, other):
                job.operator_has_seen()
                job.wait_phase("Running", attempt=1)
            without = touched(cluster, begun)
            begin_policy(cluster, attacker)
            begun = len(cluster.audit_events())
            passed, _ = attacker.all(seed=2)
            with_policy = touched(cluster, begun)
    whole = f"{PATCHES:,}"
    record(
        "hostile_status",
        [
            Figure(
                "patches, with the policy: refused or without effect", PATCHES - passed, "patches", goal=whole
            ),
            Figure(
                "objects made or deleted, with the policy", sum(with_policy.values()), "objects", goal="0"
            ),
            Figure("patches, without the policy: that changed the status", taken, "patches"),
            Figure("seconds for all of them", round(seconds, 1), "s"),
            Figure(
                "the job's objects made or deleted, without the policy", without["math"], "objects", goal="0"
            ),
            Figure(
                "other jobs' objects made or deleted, without the policy",
                without["other"],
                "objects",
                goal="0",
            ),
        ],
        out,
    )


if __name__ == "__main__":
    main()
