"""A real Kubernetes control plane on this machine, with KubeRay and fake nodes.

In a test of tests/apiserver (fixtures in its conftest.py):

    def test_something(cluster, namespace):
        cluster.kubectl("apply", "--server-side", "-n", namespace, "-f", "-", stdin=manifest)   # its output
        cluster.api.request("GET", f"/apis/ray.io/v1/namespaces/{namespace}/rayclusters")       # parsed JSON
        pods = f"/api/v1/namespaces/{namespace}/pods"
        cluster.wait(pods, lambda pods: len(pods) == 4, "four pods", seconds=30)

        cluster.stop_component("kube-apiserver", kill=True)    # and start_component, restart_apiserver
        cluster.stop_kuberay(); cluster.start_kuberay("1.5.1")
        cluster.add_nodes("nvidia.com/gpu", 100)               # 8 accelerators each
        cluster.kubeconfig; cluster.kubeconfig_of(namespace, "a-service-account"); cluster.audit_events()

`cluster` is shared by all tests of a session. What a test stopped is started again after it, and a component
that ended by itself fails the test. `namespace` is new for each test. A test marked `every_kuberay` runs once
under each version; the others run under the one of `--kuberay 1.5.1` or RLJOB_KUBERAY, else the newest.

Elsewhere: `with Cluster(kuberay=None, nodes={}) as cluster: ...`. By hand: `make cluster-up` and
`make cluster-down`.
"""

from tools.cluster.api import Api, ApiError
from tools.cluster.binaries import CannotBuild
from tools.cluster.cluster import NODES, Cluster
from tools.cluster.families import KUBERAY_VERSIONS
from tools.cluster.prepare import prepare
from tools.cluster.processes import ProcessFailed

__all__ = [
    "KUBERAY_VERSIONS",
    "NODES",
    "Api",
    "ApiError",
    "CannotBuild",
    "Cluster",
    "ProcessFailed",
    "prepare",
]
