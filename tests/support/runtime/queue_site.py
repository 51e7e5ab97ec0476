"""A real queue for tests: its server can be stopped and started at the same address."""

from contextlib import contextmanager

from rljob_runtime.net.auth import new_keys
from rljob_runtime.queue.blocking_client import QueueClient
from rljob_runtime.queue.broker import Broker
from rljob_runtime.queue.client import AsyncQueueClient
from rljob_runtime.queue.server import QueueServer

SOON = 60.0
"""Longer than anything here takes."""
SERVER_KEYS, CLIENT_KEYS = new_keys()


class Site:
    """A queue at one address, whose server can be stopped and started."""

    def __init__(self, address, capacity=64, lease_seconds=30.0, **options):
        self.address, self.capacity, self.lease_seconds, self.options = (
            address,
            capacity,
            lease_seconds,
            options,
        )
        self.server = None
        self.start()

    def start(self):
        broker = Broker(self.capacity, self.lease_seconds)
        self.server = QueueServer(broker, self.address, SERVER_KEYS, **self.options)
        self.server.start()
        self.address = self.server.endpoint.address

    def stop(self):
        self.server.stop()
        assert self.server.failure is None

    @property
    def endpoint(self):
        return self.server.endpoint

    def client(self, name="client", **options):
        return AsyncQueueClient(self.endpoint, options.pop("keys", CLIENT_KEYS), name, **options)

    def blocking(self, name="client"):
        return QueueClient(self.endpoint, CLIENT_KEYS, name)


@contextmanager
def sites():
    """Makes sites, and stops them in the end."""
    made = []

    def make(address="tcp://127.0.0.1:0", **options):
        made.append(Site(address, **options))
        return made[-1]

    yield make
    for site in made:
        site.stop()


def content(uid, size=100):
    return uid.to_bytes(4, "little") * (size // 4)


def groups(*uids, samples=4, size=100):
    return [(uid, samples, content(uid, size)) for uid in uids]
