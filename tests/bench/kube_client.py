"""Where the `kubernetes` package serves, and where the project's own client does: what it takes until 10,000
pods of a real API server are known, in time, CPU and memory, each way in a process of its own.

    python -m tests.bench.kube_client [--pods 10000]

The package's informer, which keeps whole objects, is the baseline. Its asynchronous client lists in pages of
the same size as ours, and keeps the same four fields of each pod.
"""

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rljob_client.client import PAGE_SIZE
from rljob_client.credentials import find_credentials
from tests.bench.figures import Figure, record
from tests.support.operator.informer_start import resident
from tests.support.operator.kube_pods import JOB_LABEL, make_pods
from tests.support.operator.kube_site import site
from tools.cluster import Cluster

_SECONDS = 600.0
OURS, INFORMER, LIST = "our informer", "the package's informer", "the package's asynchronous client"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--measured", nargs=3, metavar=("WHAT", "KUBECONFIG", "NAMESPACE"), help="in a child")
    options = parser.parse_args()
    if options.measured:
        what, kubeconfig, namespace = options.measured
        print(json.dumps(measured(what, kubeconfig, namespace, options.pods)))
        return
    namespace = "default"
    with Cluster(kuberay=None) as cluster:
        asyncio.run(filled(cluster, namespace, options.pods))
        found = {what: child(what, cluster.kubeconfig, namespace, options.pods) for what in (INFORMER, LIST)}
        found[OURS] = run("-m", "tests.support.operator.informer_start", str(cluster.kubeconfig), namespace)
    record("kube_client", list(figures(found, options.pods)))


async def filled(cluster: Cluster, namespace: str, pods: int) -> None:
    async with site(find_credentials(cluster.kubeconfig)) as made:
        await make_pods(made.client, namespace, pods)


def figures(found: dict[str, dict[str, Any]], pods: int) -> list[Figure]:
    base = found[INFORMER]
    made = []
    for what, told in found.items():
        if told["objects"] != pods:
            raise RuntimeError(f"{what} knows {told['objects']} of {pods} pods")
        for name, key, unit in (
            ("until all are known", "seconds", "s"),
            ("CPU", "cpu", "s"),
            ("memory at most", "peak", "MB"),
            ("memory after", "after", "MB"),
        ):
            baseline = None if what == INFORMER else base[key]
            made.append(Figure(f"{pods:,} pods, {what}: {name}", told[key], unit, baseline=baseline))
    return made


def child(what: str, kubeconfig: Path, namespace: str, pods: int) -> dict[str, Any]:
    return run(
        "-m", "tests.bench.kube_client", "--pods", str(pods), "--measured", what, str(kubeconfig), namespace
    )


def run(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, *arguments], stdout=subprocess.PIPE, text=True, check=True, timeout=_SECONDS
    )
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def measured(what: str, kubeconfig: str, namespace: str, pods: int) -> dict[str, Any]:
    """What one of the package's ways takes until it knows all pods."""
    prepare = {INFORMER: _informer, LIST: _listing}[what]
    start = prepare(kubeconfig, namespace, pods)
    gc.collect()
    before = resident()
    began, used = time.perf_counter(), time.process_time()
    objects = start()
    return {
        "objects": objects,
        "seconds": round(time.perf_counter() - began, 2),
        "cpu": round(time.process_time() - used, 2),
        "before": round(before, 1),
        "peak": round(resident("VmHWM"), 1),
        "after": round(resident(), 1),
    }


def _informer(kubeconfig: str, namespace: str, pods: int) -> Callable[[], int]:
    from kubernetes import client, config
    from kubernetes.informer import ADDED, SharedInformer

    config.load_kube_config(kubeconfig)
    core = client.CoreV1Api()
    core.list_namespaced_config_map(namespace)
    known = threading.Semaphore(0)

    def start() -> int:
        informer = SharedInformer(core.list_namespaced_pod, namespace=namespace, label_selector=JOB_LABEL)
        informer.add_event_handler(ADDED, lambda pod: known.release())
        informer.start()
        for _ in range(pods):
            if not known.acquire(timeout=_SECONDS):
                raise TimeoutError("the informer does not know all pods")
        # Not stopped: it would wait for the end of its watch. Its thread ends with the process.
        return len(informer.cache.list())

    return start


def _listing(kubeconfig: str, namespace: str, pods: int) -> Callable[[], int]:
    from kubernetes.aio import client, config

    async def listed() -> int:
        await config.load_kube_config(kubeconfig)
        known = {}
        async with client.ApiClient() as api:
            core = client.CoreV1Api(api)
            token = None
            while True:
                page = await core.list_namespaced_pod(
                    namespace, limit=PAGE_SIZE, _continue=token, label_selector=JOB_LABEL
                )
                for pod in page.items:
                    ready = any(
                        each.type == "Ready" and each.status == "True" for each in pod.status.conditions or ()
                    )
                    known[pod.metadata.name] = (pod.metadata.uid, pod.status.phase, ready, pod.spec.node_name)
                token = page.metadata.var_continue
                if not token:
                    return len(known)

    return lambda: asyncio.run(listed())


if __name__ == "__main__":
    main()
