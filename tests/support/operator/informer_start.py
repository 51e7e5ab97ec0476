"""Starts an informer over the pods of RLJobs in a process of its own and prints, as JSON, how many objects it
has, how long that took in seconds, of the clock and of CPU, and its memory in MB: before, at the highest, and
after.

    python -m tests.support.operator.informer_start KUBECONFIG NAMESPACE
"""

import asyncio
import gc
import json
import sys
import time
from pathlib import Path
from random import Random

from rljob_client.credentials import find_credentials
from rljob_client.objects import Item
from rljob_client.resources import CONFIG_MAPS
from rljob_operator.kube.informer import Informer
from tests.support.operator.kube_pods import job_of, pods
from tests.support.operator.kube_site import site


def resident(field: str = "VmRSS") -> float:
    """Memory of this process, now or at its highest (`VmHWM`), in MB."""
    status = Path("/proc/self/status").read_text()
    kilobytes = next(line.split()[1] for line in status.splitlines() if line.startswith(field))
    return int(kilobytes) * 1024 / 1e6


async def main(kubeconfig: Path, namespace: str) -> None:
    async with site(find_credentials(kubeconfig)) as made:
        # The connection and the libraries that it uses are there before memory is measured.
        await made.client.list(CONFIG_MAPS, Item, namespace)
        gc.collect()
        before = resident()
        woken: set[tuple[str, str]] = set()
        began, used = time.perf_counter(), time.process_time()
        informer = Informer(made.client, pods(namespace), woken.add, made.metrics, Random(0))
        running = asyncio.create_task(informer.run())
        async with asyncio.timeout(250):
            await informer.synced.wait()
        seconds = time.perf_counter() - began
        running.cancel()
        print(
            json.dumps(
                {
                    "objects": len(informer),
                    "jobs": len(woken),
                    "of_first_job": len(informer.of(job_of(namespace, 0))),
                    "seconds": round(seconds, 2),
                    "cpu": round(time.process_time() - used, 2),
                    "before": round(before, 1),
                    "peak": round(resident("VmHWM"), 1),
                    "after": round(resident(), 1),
                }
            )
        )


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
