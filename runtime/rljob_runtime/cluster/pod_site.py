"""A job's site in a cluster: Ray, the RLJob that is followed, the status that is written.

Guarantees: what the driver has answered is written before the site is left, as far as the API server can be
reached within `_FLUSH_SECONDS`; an API server that is away disturbs nothing.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rljob_client.credentials import Credentials
from rljob_runtime.change_signal import ChangeSignal
from rljob_runtime.cluster.alive import show_alive
from rljob_runtime.cluster.api import ApiClient
from rljob_runtime.cluster.connect import connected
from rljob_runtime.cluster.own_job import OwnJob
from rljob_runtime.cluster.report import Reporter
from rljob_runtime.cluster.settings import Settings
from rljob_runtime.net.keys import Keyring
from rljob_runtime.site.desired import DesiredState
from rljob_runtime.site.nodes import NodeTable, RayNode, pod_of, read_nodes
from rljob_runtime.site.site import RESOURCES, Site
from rljob_runtime.site.status_draft import StatusDraft

RAY_SECONDS = 600.0
"""How long Ray's head may take to start: its container starts beside the driver's."""
_FLUSH_SECONDS = 30.0


@asynccontextmanager
async def cluster_site(
    settings: Settings, credentials: Credentials, uid: str, desired: DesiredState
) -> AsyncIterator[Site]:
    """The site of the RLJob with this `uid`, which asked for `desired` when it was read. Raises `NoRay`,
    `KeyFileError`."""
    keyring = Keyring(settings.key_file)
    changes, draft, rng = ChangeSignal(), StatusDraft(settings.attempt), random.Random()
    async with connected(settings.ray_address, RAY_SECONDS), ApiClient(credentials) as client:
        own_job = OwnJob(client, settings.identity, uid, desired, rng)
        reporter = Reporter(
            client,
            settings.identity,
            uid,
            draft,
            lambda: own_job.desired,
            changes.notify,
            rng,
            time.monotonic,
        )
        table = NodeTable(read_nodes, pod_of, tuple(RESOURCES.values()), changes)
        home = await _home()
        address = settings.pod_address or home.address
        # One that fails cancels the body, and so ends the job: it would run on blindly.
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(own_job.follow(lambda _: changes.notify()), name="follow-rljob"),
                tasks.create_task(reporter.run(), name="report"),
                tasks.create_task(table.run(), name="nodes"),
            ]
            if settings.alive_file is not None:
                running.append(tasks.create_task(show_alive(settings.alive_file), name="show-alive"))
            try:
                yield Site(False, table, home.id, address, lambda: own_job.desired, draft, changes, keyring)
            finally:
                # Before its task is cancelled, which does the writing.
                await reporter.flush(_FLUSH_SECONDS)
                for task in running:
                    task.cancel()


async def _home() -> RayNode:
    """The Ray node that this process is connected to."""
    import ray

    own = ray.get_runtime_context().get_node_id()
    return next(node for node in await read_nodes() if node.id == own)
