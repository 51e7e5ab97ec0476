"""One of several replicas that want to write: holds the lease, and writes to a ConfigMap all the time.

    python -m tests.support.operator.lease_contender KUBECONFIG NAMESPACE NAME SECONDS DURATION

Prints a line of JSON for what happens, with the machine's monotonic time: `held`, `wrote`, `lost` (with the
time from which on its fence refused writes at the latest), `refused` (a write after that), `gave back`.
SECONDS: between two writes. DURATION: of the lease, in seconds. SIGTERM makes it leave in order.
"""

import asyncio
import json
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from random import Random

from rljob_client.credentials import find_credentials
from rljob_client.errors import ApiError
from rljob_client.resources import CONFIG_MAPS
from rljob_operator.kube.client import ApiClient
from rljob_operator.kube.fence import LeaseLost
from rljob_operator.kube.lease import LeaderElection
from rljob_operator.kube.lease_rules import LeaseTiming
from tests.support.operator.kube_site import site

LEASE = "rljob-operator"
BOOK = "book"
TIMING = LeaseTiming(duration=16, renew_deadline=13.0, retry=0.5)
"""A holder keeps its lease although the machine stands still for ten seconds."""


def say(what: str, **more: object) -> None:
    print(json.dumps({"what": what, "at": time.monotonic(), **more}), flush=True)


async def write(client: ApiClient, namespace: str, name: str, number: int) -> None:
    entry = {"data": {"writer": name, "number": str(number)}}
    await client.patch(CONFIG_MAPS, namespace, BOOK, entry)


async def keep_writing(
    client: ApiClient, namespace: str, name: str, seconds: float, leave: asyncio.Event
) -> None:
    number = 0
    while not leave.is_set():
        try:
            await write(client, namespace, name, number)
        except ApiError:
            continue
        number += 1
        say("wrote")
        await asyncio.sleep(seconds)


async def main(kubeconfig: Path, namespace: str, name: str, seconds: float, duration: int) -> None:
    timing = replace(TIMING, duration=duration)
    leave = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave.set)
    async with site(find_credentials(kubeconfig)) as made:
        election = LeaderElection(made.transport, namespace, LEASE, name, made.metrics, Random(name), timing)
        while not leave.is_set():
            try:
                async with election.held() as fence:
                    say("held")
                    client = made.client.fenced(fence)
                    await keep_writing(client, namespace, name, seconds, leave)
                say("gave back")
            except LeaseLost as error:
                say("lost", why=str(error), deadline=fence.deadline)
                # By the client of the lease that is lost: not even a late write may pass.
                try:
                    await write(client, namespace, name, -1)
                except LeaseLost as refusal:
                    say("refused", why=str(refusal))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4]), int(sys.argv[5])))
