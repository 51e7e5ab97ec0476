"""Two replicas, one lease: whatever happens to the one that holds it, they never both write."""

import asyncio
import json
import signal
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from random import Random

import pytest
import yaml

from rljob_client.objects import Item
from rljob_client.resources import CONFIG_MAPS, LEASES, ROLES
from rljob_operator.kube.fence import LeaseLost
from rljob_operator.kube.lease import LeaderElection
from rljob_operator.kube.lease_rules import LeaseTiming
from tests.support.operator.fault_proxy import Answer, Delay
from tests.support.operator.lease_contender import BOOK, LEASE, TIMING

ROOT = Path(__file__).parents[2]
JUDGE = "judge"


@dataclass
class Contender:
    """A replica, as a process of its own."""

    process: asyncio.subprocess.Process
    said: list[dict] = field(default_factory=list)
    _more: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def listen(self):
        async for line in self.process.stdout:
            async with self._more:
                self.said.append(json.loads(line))
                self._more.notify_all()

    async def says(self, what, times=1, seconds=120.0):
        """Wait until it has said this so often; the last one."""
        found = []

        def enough():
            found[:] = [each for each in self.said if each["what"] == what]
            return len(found) >= times

        async with self._more, asyncio.timeout(seconds):
            await self._more.wait_for(enough)
        return found[times - 1]


class Entry(Item):
    data: dict[str, str] = {}


@dataclass
class Arena:
    """A book that contenders write to, and who wrote."""

    cluster: object
    namespace: str
    client: object
    folder: Path
    stack: AsyncExitStack
    writers: list[str] = field(default_factory=list)
    judged: asyncio.Event = field(default_factory=asyncio.Event)

    async def enter(self, name, proxy=None, seconds=0.02, duration=TIMING.duration):
        """Start a contender, behind a proxy if given one."""
        config = yaml.safe_load(self.cluster.kubeconfig.read_text())
        if proxy is not None:
            config["clusters"][0]["cluster"] = {"server": proxy.url}
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(config))
        command = [sys.executable, "-m", "tests.support.operator.lease_contender"]
        arguments = [str(path), self.namespace, name, str(seconds), str(duration)]
        process = await asyncio.create_subprocess_exec(
            *command, *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        contender = Contender(process)
        listening = asyncio.create_task(contender.listen())
        self.stack.push_async_callback(_end, process, listening)
        return contender

    async def turns(self):
        """Who wrote so far, in order, each turn once."""
        await self.client.patch(CONFIG_MAPS, self.namespace, BOOK, {"data": {"writer": JUDGE}})
        await asyncio.wait_for(self.judged.wait(), 60)
        self.judged.clear()
        return [writer for writer, _ in groupby(each for each in self.writers if each != JUDGE)]

    async def renewed(self):
        """When the lease was renewed last, on the machine's monotonic clock."""
        spec = (await self.client.get(LEASES, self.namespace, LEASE, dict))["spec"]
        ago = datetime.now(UTC) - datetime.fromisoformat(spec["renewTime"])
        return time.monotonic() - ago.total_seconds()

    async def follow(self, version):
        """Read the book, entry by entry."""
        async with self.client.watch(
            CONFIG_MAPS, Entry, version, self.namespace, field_selector=f"metadata.name={BOOK}"
        ) as changes:
            async for change in changes:
                if change.item is not None:
                    self.writers.append(change.item.data["writer"])
                    if self.writers[-1] == JUDGE:
                        self.judged.set()


async def _end(process, listening):
    if process.returncode is None:
        process.kill()
    await process.wait()
    await listening


@pytest.fixture
async def arena(cluster, here, namespace, tmp_path):
    async with AsyncExitStack() as stack:
        book = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"namespace": namespace, "name": BOOK},
            "data": {"writer": "nobody"},
        }
        version = (await here.client.create(book))["metadata"]["resourceVersion"]
        arena = Arena(cluster, namespace, here.client, tmp_path, stack)
        following = asyncio.create_task(arena.follow(version))
        yield arena
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


class TestHandOver:
    async def test_a_killed_holder_is_followed_once_its_lease_ran_out(self, arena):
        first = await arena.enter("first")
        await first.says("wrote")
        second = await arena.enter("second")
        await first.says("wrote", times=20)
        renewed = await arena.renewed()
        first.process.kill()
        taken = (await second.says("held"))["at"]
        await second.says("wrote")
        # It counts from when it sees the renewal; the two clocks are read one after the other.
        assert taken - renewed > TIMING.duration - 0.1
        assert await arena.turns() == ["first", "second"]

    async def test_a_holder_that_is_cut_off_stops_before_the_other_begins(self, arena, there):
        first = await arena.enter("first", there.proxy)
        await first.says("wrote")
        second = await arena.enter("second")
        with there.proxy.blackout():
            lost = await first.says("lost")
            refused = await first.says("refused")
            held = await second.says("held")
            await second.says("wrote", times=5)
        await second.says("wrote", times=20)
        # When it says so is another matter: its process may stand still for a while.
        assert lost["deadline"] < held["at"]
        assert "it was not renewed in time" in lost["why"]
        assert "nothing was written" in refused["why"]
        assert await arena.turns() == ["first", "second"]

    async def test_a_holder_that_was_frozen_does_not_write_when_it_wakes(self, arena):
        # It writes every three seconds, so that it is frozen between two writes.
        first = await arena.enter("first", seconds=3.0)
        await first.says("wrote")
        first.process.send_signal(signal.SIGSTOP)
        second = await arena.enter("second")
        await second.says("wrote")
        first.process.send_signal(signal.SIGCONT)
        await first.says("refused")
        await second.says("wrote", times=20)
        assert await arena.turns() == ["first", "second"]

    async def test_a_holder_that_leaves_hands_over_at_once(self, arena):
        first = await arena.enter("first", duration=120)
        await first.says("wrote")
        second = await arena.enter("second", duration=120)
        await first.says("wrote", times=20)
        first.process.terminate()
        gave_back = (await first.says("gave back"))["at"]
        held = (await second.says("held"))["at"]
        await second.says("wrote")
        assert await asyncio.wait_for(first.process.wait(), 60) == 0
        # Far from the lease's duration: the other was woken.
        assert held - gave_back < 60
        assert await arena.turns() == ["first", "second"]


HASTY = LeaseTiming(duration=3, renew_deadline=1.0, retry=0.3)


def elect(there, namespace, timing, role=None):
    random = Random(0)
    return LeaderElection(there.transport, namespace, LEASE, "me", there.metrics, random, timing, role=role)


class TestHolding:
    @pytest.fixture
    def election(self, there, namespace):
        return elect(there, namespace, TIMING)

    @pytest.fixture
    def hasty_election(self, there, namespace):
        return elect(there, namespace, HASTY)

    async def lease(self, there, namespace):
        return await there.client.get(LEASES, namespace, LEASE, dict)

    async def renewed(self, there, times):
        """Wait for so many renewals."""
        async with asyncio.timeout(60):
            while there.measured("rljob_lease_renewals_total", outcome="done") < times:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def test_the_lease_says_who_has_it_and_is_given_back(self, there, election, namespace):
        async with election.held():
            spec = (await self.lease(there, namespace))["spec"]
            assert (spec["holderIdentity"], spec["leaseDurationSeconds"]) == ("me", TIMING.duration)
            assert there.measured("rljob_leader") == 1
            await self.renewed(there, 3)
            assert (await self.lease(there, namespace))["spec"]["renewTime"] > spec["renewTime"]
        assert "holderIdentity" not in (await self.lease(there, namespace))["spec"]
        assert there.measured("rljob_leader") == 0
        async with election.held():
            assert (await self.lease(there, namespace))["spec"]["leaseTransitions"] == 1

    async def test_the_lease_belongs_to_a_role_that_is_there(self, there, namespace):
        owned = elect(there, namespace, TIMING, role="of-the-lease")
        async with owned.held():
            assert "ownerReferences" not in (await self.lease(there, namespace))["metadata"]
        role = {
            "apiVersion": ROLES.api_version,
            "kind": ROLES.kind,
            "metadata": {"namespace": namespace, "name": "of-the-lease"},
            "rules": [],
        }
        made = await there.client.create(role)
        async with owned.held():
            [owner] = (await self.lease(there, namespace))["metadata"]["ownerReferences"]
            assert (owner["kind"], owner["uid"]) == ("Role", made["metadata"]["uid"])

    async def test_failures_shorter_than_the_deadline_do_no_harm(self, there, election, namespace):
        async with election.held() as fence:
            there.proxy.inject(Answer(500), times=2, method="PATCH", containing=LEASE)
            await self.renewed(there, 3)
            assert there.proxy.pending == 0
            assert fence.closed is None

    async def test_what_others_write_to_the_object_does_no_harm(self, there, election, namespace):
        async with election.held() as fence:
            note = {"metadata": {"annotations": {"note": "hello"}}}
            await there.client.patch(LEASES, namespace, LEASE, note)
            await self.renewed(there, 3)
            assert fence.closed is None

    @pytest.mark.parametrize(
        ("harm", "why"),
        [
            ({"spec": {"holderIdentity": "usurper"}}, "usurper has it now"),
            ({"spec": {"holderIdentity": None}}, "nobody has it now"),
            (None, "it was deleted"),
        ],
    )
    async def test_a_lease_that_is_taken_away_ends_the_body(self, there, election, namespace, harm, why):
        with pytest.raises(LeaseLost, match=why):
            async with election.held() as fence:
                lease = await self.lease(there, namespace)
                if harm is None:
                    await there.client.delete(LEASES, namespace, LEASE, lease["metadata"]["uid"])
                else:
                    await there.client.patch(LEASES, namespace, LEASE, harm)
                await asyncio.sleep(60)
        assert fence.closed is not None
        assert there.measured("rljob_leader") == 0

    async def test_a_loop_that_hung_writes_nothing_afterwards(self, hasty_election):
        with pytest.raises(LeaseLost):
            async with hasty_election.held() as fence:
                time.sleep(HASTY.renew_deadline + 0.5)  # noqa: ASYNC251 - that is what is tested
                with pytest.raises(LeaseLost), fence.write():
                    pytest.fail("it wrote")
                await asyncio.sleep(60)

    @pytest.mark.parametrize("turns", range(5))
    async def test_a_body_that_finds_the_fence_closed_ends_as_one_that_is_cancelled(
        self, hasty_election, turns
    ):
        """The keeper may notice before, at the same time, or after."""
        with pytest.raises(LeaseLost):
            async with hasty_election.held() as fence:
                time.sleep(HASTY.renew_deadline + 0.2)  # noqa: ASYNC251 - that is what is tested
                for _ in range(turns):
                    await asyncio.sleep(0)
                with fence.write():
                    pytest.fail("it wrote")
        assert asyncio.current_task().cancelling() == 0
        await asyncio.sleep(0.1)

    async def test_writes_under_way_end_before_the_lease_is_given_back(self, there, election, namespace):
        async with election.held() as fence:
            there.proxy.inject(Delay(1.0), containing="configmaps")
            late = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"namespace": namespace, "name": "late"},
            }
            writing = asyncio.create_task(there.client.fenced(fence).create(late))
            await asyncio.sleep(0.2)
        assert writing.done()
        assert (await writing)["metadata"]["name"] == "late"

    async def test_errors_of_the_body_pass_through_and_give_the_lease_back(self, there, election, namespace):
        with pytest.raises(ZeroDivisionError):
            async with election.held():
                raise ZeroDivisionError
        assert "holderIdentity" not in (await self.lease(there, namespace))["spec"]

    async def test_a_cancelled_body_gives_the_lease_back(self, there, election, namespace):
        entered = asyncio.Event()

        async def lead():
            async with election.held():
                entered.set()
                await asyncio.sleep(60)

        leading = asyncio.create_task(lead())
        await asyncio.wait_for(entered.wait(), 60)
        leading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leading
        assert "holderIdentity" not in (await self.lease(there, namespace))["spec"]
