"""Forgets RLJobs that were deleted while there was no connection.

A watch that begins anew does not tell of deletions.

Guarantees: such a deletion is found within some minutes. A job
that is there is never forgotten.
"""

import asyncio
import logging
from random import Random

from rljob_operator.controller.jobs import JobStore
from rljob_operator.kube.client import ApiClient
from rljob_operator.kube.errors import ApiError
from rljob_operator.kube.objects import Item
from rljob_operator.kube.resources import RLJOBS

log = logging.getLogger(__name__)

_SECONDS = 300.0
"""Between two sweeps, on average: each list makes the API server read all RLJobs."""


async def keep_swept(jobs: JobStore, client: ApiClient, namespace: str | None, random: Random) -> None:
    """Sweep every few minutes, until cancelled."""
    while True:
        # Spread over replicas, which would list at the same time after an outage.
        await asyncio.sleep(_SECONDS * (0.75 + 0.5 * random.random()))
        try:
            await sweep(jobs, client, namespace)
        except ApiError as error:
            log.warning("deleted RLJobs are looked for later: %s", error)


async def sweep(jobs: JobStore, client: ApiClient, namespace: str | None) -> None:
    """Forget the jobs that are not in a fresh list. The list begins after the known jobs are noted: one that
    is created meanwhile is not among them. Raises `ApiError`."""
    known = jobs.uids()
    there = {item.metadata.uid for item in await client.list(RLJOBS, Item, namespace)}
    for ref, uid in known.items():
        if uid not in there:
            log.info("%s/%s was deleted unseen", *ref)
            jobs.drop(ref, uid)
