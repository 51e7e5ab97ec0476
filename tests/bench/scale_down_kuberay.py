"""Random scale-downs of live rollout pools against the real KubeRay, in each supported version.

A simulated runtime knows which pods hold work (tests/support/operator/scaling_site.py). Counted are busy
workers that were killed, and workers that KubeRay chose by itself: both must be 0.

    python -m tests.bench.scale_down_kuberay [--scale-downs 200] [--jobs 8]
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from tests.bench.figures import Figure, record
from tests.support.operator.operator_site import running_operator
from tests.support.operator.scaling_site import Record, scale_at_random
from tools.cluster import KUBERAY_VERSIONS, Cluster

GOAL = "at least 200 against each version: 0 busy workers killed, 0 wrong victims"


def measured(cluster: Cluster, version: str, jobs: int, scale_downs: int) -> tuple[Record, float]:
    """What happened under one version, and how many seconds it took."""
    cluster.start_kuberay(version)
    namespace = f"scaling-{version.replace('.', '-')}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    cluster.api.request("POST", "/api/v1/namespaces", body)
    cluster.wait(f"/api/v1/namespaces/{namespace}/serviceaccounts", bool, "a default service account")
    with tempfile.TemporaryDirectory() as folder, running_operator(cluster, Path(folder), namespace):
        began = time.monotonic()
        happened = asyncio.run(
            scale_at_random(
                cluster, namespace, jobs, -(-scale_downs // jobs), seed=int(version.replace(".", ""))
            )
        )
        took = time.monotonic() - began
    cluster.api.request("DELETE", f"/api/v1/namespaces/{namespace}")
    return happened, took


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale-downs", type=int, default=200, help="at least so many for each version")
    parser.add_argument("--jobs", type=int, default=8, help="jobs that change side by side")
    options = parser.parse_args()
    figures = []
    with Cluster() as cluster:
        for version in KUBERAY_VERSIONS:
            happened, took = measured(cluster, version, options.jobs, options.scale_downs)
            under = f"KubeRay {version}"
            figures += [
                Figure(f"{under}: random scale-downs", happened.scale_downs, "", goal=GOAL),
                Figure(f"{under}: scale-ups in between", happened.scale_ups, ""),
                Figure(f"{under}: started workers that went", len(happened.gone), ""),
                Figure(f"{under}: busy workers killed", len(happened.busy), "", goal=GOAL),
                Figure(f"{under}: victims that KubeRay chose", len(happened.unnamed), "", goal=GOAL),
                Figure(f"{under}: time", took, "s"),
            ]
    record("scale_down_kuberay", figures)


if __name__ == "__main__":
    main()
