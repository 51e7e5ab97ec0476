"""Operators of several releases, on an API server that is a table of Leases, in virtual time."""

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from itertools import groupby
from random import Random

import pytest

from rljob_client.client import ClientSettings
from rljob_client.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    NotFound,
    Refusal,
    Unreachable,
)
from rljob_client.resources import CONFIG_MAPS
from rljob_operator.controller.leadership import CLUSTER_LEASE, NAMESPACE_LEASE, Leadership
from rljob_operator.kube.client import ApiClient
from rljob_operator.kube.fence import LeaseLost
from rljob_operator.kube.lease import LeaderElection
from rljob_operator.kube.observer import KubeObserver
from rljob_runtime.simulate.virtual_loop import run_virtual

DURATION = 15.0


class ApiServer:
    """Leases, and what processes write to other objects."""

    def __init__(self):
        self.leases, self.version, self.changed = {}, 0, asyncio.Event()
        self.forbidden, self.writes = set(), []

    async def send(self, call, timeout):
        await asyncio.sleep(0.01)
        namespace, name = _place(call)
        if "configmaps" in call.path:
            self.writes.append((asyncio.get_running_loop().time(), name))
            return b"{}"
        if namespace in self.forbidden:
            raise Forbidden(str(call), "leases is forbidden", Refusal(403, "Forbidden"))
        if call.verb == "create":
            made = json.loads(call.body)
            key = namespace, made["metadata"]["name"]
            if key in self.leases:
                raise AlreadyExists(str(call), "exists", Refusal(409, "AlreadyExists"))
            return self._put(key, made)
        there = self.leases.get((namespace, name))
        if there is None:
            raise NotFound(str(call), "not found", Refusal(404, "NotFound"))
        if call.verb == "get":
            return json.dumps(there).encode()
        change = json.loads(call.body)
        if change["metadata"]["resourceVersion"] != there["metadata"]["resourceVersion"]:
            raise Conflict(str(call), "modified", Refusal(409, "Conflict"))
        spec = {k: v for k, v in {**there["spec"], **change["spec"]}.items() if v is not None}
        return self._put((namespace, name), {**there, "spec": spec})

    def _put(self, key, lease):
        self.version += 1
        lease["metadata"]["resourceVersion"] = str(self.version)
        self.leases[key] = lease
        self.changed.set()
        self.changed = asyncio.Event()
        return json.dumps(lease).encode()

    @asynccontextmanager
    async def stream(self, call, silence):
        """The watch of one Lease."""
        namespace, _ = _place(call)
        name = dict(call.query)["fieldSelector"].removeprefix("metadata.name=")

        async def lines():
            seen = None
            while True:
                lease = self.leases.get((namespace, name))
                if lease is not None and lease != seen:
                    yield json.dumps({"type": "MODIFIED", "object": lease}).encode()
                    seen = lease
                await self.changed.wait()

        yield lines()

    def holder(self, namespace, name):
        return self.leases[namespace, name]["spec"].get("holderIdentity")


def _place(call):
    parts = call.path.split("/")
    at = parts.index("namespaces")
    return parts[at + 1], parts[at + 3] if len(parts) > at + 3 else ""


class Wire:
    """One process's connection, which can be cut."""

    def __init__(self, server):
        self._server, self.cut = server, False

    async def send(self, call, timeout):
        if self.cut:
            await asyncio.sleep(timeout)
            raise Unreachable(str(call), "no answer")
        return await self._server.send(call, timeout)

    @asynccontextmanager
    async def stream(self, call, silence):
        if self.cut:
            await asyncio.sleep(silence)
            raise Unreachable(str(call), "no answer")
        async with self._server.stream(call, silence) as lines:
            yield lines


class Operator:
    """A process: it writes every half second while it leads."""

    def __init__(self, server, release, name, watched=None):
        """`watched`: the namespace that it watches alone."""
        self.name, self.wire, self.observer = name, Wire(server), Leads()
        clock = asyncio.get_running_loop().time
        scope = ("kube-system", CLUSTER_LEASE) if watched is None else (watched, NAMESPACE_LEASE)
        replicas, releases = (
            LeaderElection(self.wire, *place, name, self.observer, Random(name), clock=clock, tells=tells)
            for place, tells in (((release, "rljob-operator"), False), (scope, True))
        )
        self.leadership = Leadership(replicas, releases)
        self._task = asyncio.create_task(self._run())

    async def _run(self):
        client = ApiClient(self.wire, KubeObserver(), ClientSettings("f"), Random(0))
        while True:
            with suppress(LeaseLost, ApiError):
                async with self.leadership.held() as fences:
                    fenced = client.fenced(*fences)
                    while True:
                        await fenced.patch(CONFIG_MAPS, "default", self.name, {})
                        await asyncio.sleep(0.5)

    async def stop(self):
        """In order: leases are given back."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def kill(self):
        """Nothing is given back."""
        self.wire.cut = True
        await self.stop()


class Leads(KubeObserver):
    """Whether a process is said to lead."""

    now = False

    def leads(self, holds_lease):
        self.now = holds_lease


def turns(server):
    """Who wrote, in order, each turn once, and when."""
    return [(name, next(group)[0]) for name, group in groupby(server.writes, key=lambda write: write[1])]


def names(server):
    return [name for name, _ in turns(server)]


def test_of_two_releases_that_watch_everything_one_works_until_it_is_gone():
    async def scenario():
        server = ApiServer()
        first = Operator(server, "one", "a")
        await asyncio.sleep(5)
        second = Operator(server, "two", "b")
        await asyncio.sleep(600)
        assert names(server) == ["a"] and (first.observer.now, second.observer.now) == (True, False)
        assert server.holder("two", "rljob-operator") == "b", "it waits as the leader of its release"
        assert second.leadership.trouble is None
        gone = asyncio.get_running_loop().time()
        await first.stop()
        await asyncio.sleep(30)
        [_, (name, began)] = turns(server)
        assert name == "b" and began - gone < 1 and second.observer.now
        await second.stop()

    run_virtual(scenario())


@pytest.mark.parametrize("release", ["one", "two"])
def test_after_a_leader_that_is_killed_the_next_begins_within_the_duration_of_one_lease(release):
    """A replica of the same release, or one of another."""

    async def scenario():
        server = ApiServer()
        first = Operator(server, "one", "a")
        await asyncio.sleep(5)
        second = Operator(server, release, "b")
        await asyncio.sleep(60)
        gone = asyncio.get_running_loop().time()
        await first.kill()
        await asyncio.sleep(60)
        [_, (name, began)] = turns(server)
        assert name == "b" and began - gone < DURATION + 2
        await second.stop()

    run_virtual(scenario())


@pytest.mark.parametrize("release", ["one", "two"])
@pytest.mark.parametrize("seconds", [3, 12, 100])
def test_one_that_is_cut_off_for_a_while_never_writes_beside_another(release, seconds):
    async def scenario():
        server = ApiServer()
        operators = [Operator(server, "one", "a"), Operator(server, release, "b")]
        for turn in range(12):
            await asyncio.sleep(40)
            cut = operators[turn % 2]
            cut.wire.cut = True
            await asyncio.sleep(seconds)
            cut.wire.cut = False
        for operator in operators:
            await operator.stop()
        found = turns(server)
        # Failures shorter than the deadline do no harm; and nobody comes back while another one writes.
        assert (len(found) == 1) == (seconds == 3) and len(found) <= 13

    run_virtual(scenario())


def test_operators_of_different_namespaces_work_beside_each_other():
    async def scenario():
        server = ApiServer()
        operators = [Operator(server, "one", "a", "team-a"), Operator(server, "two", "b", "team-b")]
        third = Operator(server, "three", "c", "team-a")
        await asyncio.sleep(60)
        assert {name for _, name in server.writes} == {"a", "b"}
        for operator in (*operators, third):
            await operator.stop()

    run_virtual(scenario())


def test_a_replica_without_rights_takes_no_lease_and_says_why():
    async def scenario():
        server = ApiServer()
        server.forbidden.add("kube-system")
        operator = Operator(server, "one", "a")
        await asyncio.sleep(60)
        assert server.leases == {} and "leases is forbidden" in operator.leadership.trouble
        server.forbidden.clear()
        await asyncio.sleep(10)
        assert names(server) == ["a"] and operator.leadership.trouble is None
        await operator.stop()

    run_virtual(scenario())
