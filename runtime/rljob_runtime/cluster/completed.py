"""The driver's last word of a job that is done: `status.training.completed`.

Its exit code says the same, but goes with the pod, and the operator may be away until then.
"""

import asyncio
import logging
import random

from rljob_api import GROUP, KIND, VERSION
from rljob_runtime.cluster.api import ApiClient, ApiRefused, ApiUnavailable
from rljob_runtime.cluster.back_off import BackOff
from rljob_runtime.cluster.own_job import Identity

log = logging.getLogger(__name__)

FIELD_MANAGER = "rljob-runtime-completed"
"""Not that of the other reports: with server-side apply a manager that leaves out what it wrote before
removes it, so that all of `status.training` would have to be written again."""
_SECONDS = 20.0
"""How long it is tried."""


async def say_completed(client: ApiClient, identity: Identity, uid: str, rng: random.Random) -> None:
    """Say in the status that the job is done; tried for `_SECONDS`, and only logged where it fails. `uid`:
    metadata.uid of the RLJob, so that a later one of the same name is left alone."""
    body = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {"name": identity.name, "namespace": identity.namespace, "uid": uid},
        "status": {"training": {"completed": True}},
    }
    back_off = BackOff(rng)
    try:
        async with asyncio.timeout(_SECONDS):
            while True:
                try:
                    await client.apply(f"{identity.path}/status", FIELD_MANAGER, body)
                    return
                except ApiUnavailable as error:
                    log.info("that the job is done cannot be written now: %s", error)
                await asyncio.sleep(back_off.failed())
    except (TimeoutError, ApiRefused) as error:
        log.warning("that the job is done is not in its status: %s", str(error) or "the server is away")
