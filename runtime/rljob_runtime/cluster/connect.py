"""The connection to the Ray of the cluster.

Guarantees: a Ray that is still starting is waited for, with a deadline; none is ever started here.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rljob_runtime.site import one_machine as local_ray
from rljob_runtime.site.large_imports import large_imports

log = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
"""Between two attempts."""
_CONNECT_SECONDS = 5.0
"""For one attempt to open a connection."""


class NoRay(RuntimeError):
    """There is no Ray at the address; the message says what was tried."""


@asynccontextmanager
async def connected(address: str, seconds: float) -> AsyncIterator[None]:
    """A connection to the Ray whose head listens at `address` (host:port), tried for `seconds`. Raises
    `NoRay`."""
    local_ray.prepare()
    with large_imports():
        import ray

    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    await _listening(address, seconds)
    while True:
        try:
            # Blocks for as long as the head's own processes take: nothing else is to be done meanwhile.
            # Actors print to the logs of their own containers.
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            break
        except (ConnectionError, RuntimeError) as error:
            ray.shutdown()
            if loop.time() > deadline:
                raise NoRay(
                    f"Ray at {address} does not take a driver after {seconds:g} s: {error}"
                ) from error
            log.info("Ray at %s is not ready: %s", address, error)
            await asyncio.sleep(_RETRY_SECONDS)
    local_ray.hush()
    try:
        yield
    finally:
        ray.shutdown()


async def _listening(address: str, seconds: float) -> None:
    """Wait until something listens there: Ray itself would try for minutes and could not be stopped."""
    host, _, port = address.rpartition(":")
    last: Exception | None = None
    try:
        async with asyncio.timeout(seconds):
            while True:
                try:
                    async with asyncio.timeout(_CONNECT_SECONDS):
                        _, writer = await asyncio.open_connection(host, int(port))
                    writer.close()
                    return
                except (OSError, TimeoutError) as error:
                    last = error
                    # A port that refuses connections gives no event.
                    await asyncio.sleep(_RETRY_SECONDS)
    except TimeoutError:
        raise NoRay(f"nothing listens at {address} after {seconds:g} s: {last}") from None
