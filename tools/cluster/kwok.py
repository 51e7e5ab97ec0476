"""Fake nodes: KWOK plays the kubelet of each, so that pods run, are ready and go without a container.

A pod runs a moment after it is bound and never ends by itself; a test that needs another end patches its
status, which KWOK then leaves alone.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.cluster.api import WAIT_SECONDS, Api, ApiError, Object, holds
from tools.cluster.binaries import manifests, program
from tools.cluster.control_plane import answers
from tools.cluster.families import KWOK
from tools.cluster.ports import Ports
from tools.cluster.processes import Process

ACCELERATORS_PER_NODE = 8
NODE_CAPACITY = {"cpu": "128", "memory": "1Ti", "ephemeral-storage": "4Ti", "pods": "250"}
CONFIGURATION = """\
apiVersion: config.kwok.x-k8s.io/v1alpha1
kind: KwokConfiguration
options: {podPlayStageParallelism: 16, nodePlayStageParallelism: 16, nodeLeaseParallelism: 16}
"""


def kwok_process(folder: Path, ports: Ports, kubeconfig: Path) -> Process:
    """KWOK for the nodes that `add_nodes` makes."""
    configuration = folder / "kwok.yaml"
    stages = [path.read_text() for path in manifests(KWOK, "stages")]
    configuration.write_text("\n---\n".join([CONFIGURATION, *stages]))
    port = ports.take()
    return Process(
        "kwok",
        [
            str(program(KWOK, "kwok")),
            f"--kubeconfig={kubeconfig}",
            f"--config={configuration}",
            f"--server-address=127.0.0.1:{port}",
            "--manage-all-nodes=false",
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
            "--node-lease-duration-seconds=40",
        ],
        folder / "kwok.log",
        answers(f"http://127.0.0.1:{port}/healthz"),
        {"KWOK_WORKDIR": str(folder / "kwok")},
    )


def add_nodes(api: Api, resource: str, count: int) -> list[str]:
    """Makes `count` fake nodes with 8 of the extended resource each; their names, once pods can run there.

    Names go on from those that are there: nvidia-0, nvidia-1, ... for nvidia.com/gpu. ApiError, TimeoutError.
    """
    prefix = resource.partition(".")[0]
    there = sum(item["metadata"]["name"].startswith(f"{prefix}-") for item in api.items("/api/v1/nodes"))
    names = [f"{prefix}-{number}" for number in range(there, there + count)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: _add(api, name, resource), names))

    def ready(nodes: list[Object]) -> bool:
        return set(names) <= {node["metadata"]["name"] for node in nodes if _takes_pods(node)}

    api.wait(
        "/api/v1/nodes", ready, f"{count} nodes with {resource} ready", seconds=WAIT_SECONDS + count / 10
    )
    return names


def _add(api: Api, name: str, resource: str) -> None:
    capacity = {**NODE_CAPACITY, resource: str(ACCELERATORS_PER_NODE)}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake", "node.alpha.kubernetes.io/ttl": "0"},
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "type": "kwok"},
        },
        "status": {"capacity": capacity, "allocatable": capacity},
    }
    try:
        api.request("POST", "/api/v1/nodes", node)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise


def _takes_pods(node: Object) -> bool:
    # The controller-manager takes the taint of a new node off a moment after it is ready.
    return holds(node, "Ready") and not node["spec"].get("taints")
