"""Namespaces with an operator of their own, as the one that watches all namespaces sees them."""

import asyncio

import msgspec
import pytest

from rljob_client.errors import NotFound, Refusal, Unreachable
from rljob_operator.controller.elsewhere import Elsewhere
from rljob_operator.kube.lease_rules import LeaseRecord


def record(holder="theirs", renewed="t0", version="1"):
    return LeaseRecord(version, holder, 15.0, renewed)


class Site:
    """What the informer tells, what the API server would say, and who is woken."""

    def __init__(self):
        self.now, self.stored, self.reads, self.woken, self.down = 0.0, None, 0, [], False
        self.elsewhere = Elsewhere(self, lambda: self.now, self.woken.append)

    def tell(self, seconds, lease):
        """The informer brings a Lease; None: it has none any more."""
        self.now, self.stored = seconds, lease
        self.elsewhere.seen("team", lease)

    def wait(self, seconds):
        """Seconds for which the namespace is theirs."""
        self.now = seconds
        return asyncio.run(self.elsewhere.wait("team"))

    async def get(self, resource, namespace, name, kind):
        self.reads += 1
        assert (resource.plural, namespace, name) == ("leases", "team", "rljob-operator-namespace")
        if self.down:
            raise Unreachable("get", "no answer")
        if self.stored is None:
            raise NotFound("get", "not found", Refusal(404))
        spec = {
            "holderIdentity": self.stored.holder or None,
            "leaseDurationSeconds": 15,
            "renewTime": self.stored.renewed,
        }
        metadata = {"namespace": namespace, "name": name, "resourceVersion": self.stored.version}
        return msgspec.convert({"metadata": metadata, "spec": spec}, kind)


@pytest.fixture
def site():
    return Site()


@pytest.mark.parametrize(
    ("told", "when", "left", "woken", "reads"),
    [
        ([], 5, None, 0, 0),
        ([(1, record())], 5, 11.0, 1, 0),
        ([(1, record()), (3, record(renewed="t1")), (5, record(renewed="t2"))], 6, 14.0, 1, 0),
        # Given back, gone, and expired: taken back, and whoever is there is woken.
        ([(1, record()), (3, record(holder=""))], 4, None, 2, 0),
        ([(1, record()), (3, None)], 4, None, 2, 0),
        ([(1, record())], 16, None, 2, 1),
        ([(1, record()), (3, record(version="2"))], 16, None, 2, 1),
        # One that nobody has held since it was made.
        ([(1, record(holder=""))], 4, None, 0, 0),
        # It comes again.
        ([(1, record()), (3, record(holder="")), (9, record("another", "t5"))], 10, 14.0, 3, 0),
    ],
)
def test_a_namespace_is_theirs_while_its_lease_is_held(site, told, when, left, woken, reads):
    for seconds, lease in told:
        site.tell(seconds, lease)
    assert site.wait(when) == left
    assert site.elsewhere.left("team") == (left is not None)
    assert (site.woken, site.reads) == (["team"] * woken, reads)
    assert asyncio.run(site.elsewhere.wait("other")) is None


def test_a_watch_that_tells_nothing_does_not_make_it_ours(site):
    site.tell(1, record())
    for turn in range(1, 5):
        site.stored = record(renewed=f"t{turn}")
        assert site.wait(1 + 16.0 * turn) == 15.0
    assert site.reads == 4 and site.woken == ["team"]


def test_nothing_is_taken_over_while_the_api_server_cannot_be_asked(site):
    site.tell(1, record())
    site.down = True
    for seconds in (17, 60):
        with pytest.raises(Unreachable):
            site.wait(seconds)
    assert site.elsewhere.left("team")
    site.down = False
    assert site.wait(61) is None and site.wait(62) is None and site.reads == 3
