"""The driver's last word of a job that is done: `status.training.completed`.

Its exit code says the same, but goes with the pod, and the operator may be away until then.
"""

import asyncio
import logging
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rljob_api import GROUP, KIND, VERSION
from rljob_client.client import ApiClient
from rljob_client.errors import ApiError
from rljob_client.retry import PATIENT, attempted
from rljob_runtime.cluster.own_job import Identity

log = logging.getLogger(__name__)

FIELD_MANAGER = "rljob-runtime-completed"
"""Not that of the other reports: with server-side apply a manager that leaves out what it wrote before
removes it, so that all of `status.training` would have to be written again."""
_SECONDS = 20.0
"""How long it is tried."""
# It is written whatever version the RLJob has by then.
_RETRY = replace(PATIENT, conflicts=True)


async def say_completed(client: ApiClient, identity: Identity, uid: str, rng: random.Random) -> None:
    """Say in the status that the job is done; tried for `_SECONDS`, and only logged where it fails. `uid`:
    metadata.uid of the RLJob, so that a later one of the same name is left alone. The client's field manager
    must be `FIELD_MANAGER`."""
    await _say(client, identity, uid, rng, True)


async def take_back_completed(client: ApiClient, identity: Identity, uid: str, rng: random.Random) -> None:
    """Say that the job is not done: an earlier attempt said that it was, and the job was changed since. As
    `say_completed`. To be called before the first report of an attempt, with which the word would count."""
    await _say(client, identity, uid, rng, False)


def completed_before(found: Mapping[str, Any]) -> bool:
    """Whether the RLJob, as the API server returns it, says that the job is done."""
    status = found.get("status")
    training = status.get("training") if isinstance(status, Mapping) else None
    return isinstance(training, Mapping) and training.get("completed") is True


async def _say(client: ApiClient, identity: Identity, uid: str, rng: random.Random, completed: bool) -> None:
    body = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {"name": identity.name, "namespace": identity.namespace, "uid": uid},
        "status": {"training": {"completed": completed}},
    }
    what = "that the job is done" if completed else "that the job is not done any more"

    def failed(error: ApiError) -> None:
        log.info("%s cannot be written now: %s", what, error)

    try:
        async with asyncio.timeout(_SECONDS):
            await attempted(lambda: client.apply_status(body), _RETRY, rng, failed)
    except (TimeoutError, ApiError) as error:
        log.warning("%s is not in its status: %s", what, str(error) or "the server is away")
