"""The Ray actor in whose process the queue's server runs. Groups do not pass through Ray.

Guarantees: the queue listens when the constructor has returned; `wait_stopped` ends when the server has, so
that whoever awaits it learns of a failure at once (and of the actor's death from Ray).
"""

from typing import Any

from rljob_runtime.net.auth import Endpoint
from rljob_runtime.net.keys import ServerSide, server_keys
from rljob_runtime.queue.broker import Broker
from rljob_runtime.queue.server import QueueServer


class QueueHost:
    """Hosts one queue; see `start_host`."""

    def __init__(
        self,
        keys: ServerSide,
        capacity_samples: int,
        address: str,
        lease_seconds: float = 30.0,
        term: int = 0,
    ) -> None:
        """Raises `KeyFileError`, and `AddressError` where `address` cannot be listened on. A queue that
        replaces a lost one is given its address, keys and term."""
        self._server = QueueServer(Broker(capacity_samples, lease_seconds, term), address, server_keys(keys))
        self._server.start()

    def endpoint(self) -> Endpoint:
        """Where clients reach the queue."""
        return self._server.endpoint

    def wait_stopped(self) -> str | None:
        """Wait until the server has ended; why it failed, or None when it was stopped."""
        self._server.join()
        return self._server.failure

    def stop(self) -> None:
        """End the server."""
        self._server.stop()


def start_host(
    keys: ServerSide,
    capacity_samples: int,
    address: str,
    lease_seconds: float = 30.0,
    term: int = 0,
    **options: Any,
) -> Any:
    """A handle of an actor with a `QueueHost`; `options` are Ray's for actors (name, resources, ...).

    `address` is tcp://HOST:PORT, where HOST is an address of the actor's node and port 0 takes a free one, or
    ipc://PATH for one machine."""
    import ray

    # One call waits for the end, one serves the others.
    actor = ray.remote(num_cpus=0, max_concurrency=2, **options)(QueueHost)
    return actor.remote(keys, capacity_samples, address, lease_seconds, term)
