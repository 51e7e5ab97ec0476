"""The informer against a real API server, and a network that fails."""

import asyncio
import json
import shutil
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
import yaml

from rljob_client.backoff import Backoff
from rljob_client.client import WatchLimits
from rljob_client.credentials import find_credentials
from rljob_client.objects import Item
from rljob_client.resources import CONFIG_MAPS, PODS, Resource
from rljob_operator.kube.informer import HistoryLost, Informer, Selection
from rljob_operator.kube.watch_rules import WatchRules
from tests.support.operator.config_maps import config_map
from tests.support.operator.fault_proxy import Answer
from tests.support.operator.kube_pods import make_pods
from tests.support.operator.kube_site import site
from tools.cluster import Cluster
from tools.cluster.custom_resources import DEFINITIONS, apply_definitions

ROOT = Path(__file__).parents[2]
RULES = WatchRules(Backoff(base_seconds=0.1, cap_seconds=0.5), absent_seconds=0.3, denial_seconds=0.3)
JOBS, PODS_IN_ALL = 200, 2_000
"""Several pages of the API server's; `tests/bench/kube_client.py` has 10,000."""
PEAK_MB = 20.0


class ConfigMap(Item):
    data: dict[str, str] = {}


def selection(namespace, resource=CONFIG_MAPS):
    """ConfigMaps by the label `job`; what is kept is the value of `x`."""
    return Selection(
        resource,
        ConfigMap,
        owner_of=lambda found: found.metadata.labels.get("job"),
        project=lambda found: found.data.get("x"),
        namespace=namespace,
        label_selector="job",
    )


@dataclass
class Seen:
    """An informer and whom it has woken."""

    informer: Informer | None = None
    woken: list = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def on_change(self, owner):
        self.woken.append(owner)
        self.changed.set()

    async def until(self, expected, seconds=240.0):
        """Wait until the informer knows exactly these values, by owner and name."""
        try:
            async with asyncio.timeout(seconds):
                while self.known != expected:
                    await self.changed.wait()
                    self.changed.clear()
        except TimeoutError:
            pytest.fail(f"the informer knows {self.known}, not {expected}; {self.informer.trouble}")

    @property
    def known(self):
        return {
            owner: {name: value for (_, name), value in self.informer.of(owner).items()}
            for owner in self.informer.owners()
        }


@asynccontextmanager
async def informing(made, chosen, limits=None, page_size=500):
    """An informer that runs."""
    seen = Seen()
    seen.informer = Informer(
        made.client, chosen, seen.on_change, made.metrics, Random(0), RULES, limits, page_size
    )
    running = asyncio.create_task(seen.informer.run())
    try:
        yield seen
    finally:
        running.cancel()
        ended = await asyncio.gather(running, return_exceptions=True)
        assert isinstance(ended[0], asyncio.CancelledError), ended[0]


@pytest.fixture
def put(here, namespace):
    """Makes or changes a ConfigMap of a job, past the proxy."""

    async def put(name, job, x=None, **more):
        manifest = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"namespace": namespace, "name": name, "labels": {"job": job} if job else {}},
            "data": {**({} if x is None else {"x": x}), **more},
        }
        return (await here.client.apply(manifest))["metadata"]["uid"]

    return put


async def until(condition):
    """For what the informer does not announce: its health."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - health is asked for, nobody is called when it changes
            await asyncio.sleep(0.05)


def lists(made):
    return made.measured("rljob_informer_lists_total", resource="configmaps")


def ends(made, cause):
    return made.measured("rljob_informer_watch_ends_total", resource="configmaps", cause=cause)


async def test_follows_what_happens(here, namespace, put):
    await put("a", "job-1", "1")
    await put("stranger", None, "1")
    async with informing(here, selection(namespace)) as seen:
        await asyncio.wait_for(seen.informer.synced.wait(), 60)
        assert seen.known == {"job-1": {"a": "1"}}
        uid = await put("b", "job-1", "2")
        await seen.until({"job-1": {"a": "1", "b": "2"}})
        await put("a", "job-2", "3")
        await seen.until({"job-1": {"b": "2"}, "job-2": {"a": "3"}})
        await here.client.delete(CONFIG_MAPS, namespace, "b", uid)
        await put("a", None)
        await seen.until({})
        assert len(seen.informer) == 0
    assert seen.woken == ["job-1", "job-1", "job-1", "job-2", "job-1", "job-2"]
    assert lists(here) == 1


async def test_what_is_not_kept_wakes_nobody(here, namespace, put):
    await put("a", "job-1", "1")
    async with informing(here, selection(namespace)) as seen:
        await seen.until({"job-1": {"a": "1"}})
        for number in range(5):
            await put("a", "job-1", "1", heartbeat=str(number))
        await put("b", "job-1", "2")
        await seen.until({"job-1": {"a": "1", "b": "2"}})
    assert seen.woken == ["job-1", "job-1"]


async def test_a_cut_watch_goes_on_from_where_it_was(there, namespace, put):
    async with informing(there, selection(namespace)) as seen:
        for number in range(5):
            await asyncio.wait_for(there.proxy.watched.wait(), 60)
            there.proxy.cut()
            await put("a", "job-1", str(number))
            await seen.until({"job-1": {"a": str(number)}})
    assert (lists(there), ends(there, "failed")) == (1, 5)


async def test_deletions_during_a_gap_are_found_by_the_next_list(there, here, namespace, put):
    uid = await put("a", "job-1", "1")
    await put("b", "job-2", "1")
    async with informing(there, selection(namespace)) as seen:
        await seen.until({"job-1": {"a": "1"}, "job-2": {"b": "1"}})
        await asyncio.wait_for(there.proxy.watched.wait(), 60)
        with there.proxy.blackout():
            there.proxy.cut()
            await here.client.delete(CONFIG_MAPS, namespace, "a", uid)
            await put("c", "job-3", "1")
            there.proxy.inject(Answer(410, reason="Expired"), containing="watch=true")
        await seen.until({"job-2": {"b": "1"}, "job-3": {"c": "1"}})
        assert sorted(seen.woken) == ["job-1", "job-1", "job-2", "job-3"]
    assert lists(there) == 2


async def test_a_watch_that_expires_is_followed_by_a_list(there, namespace, put):
    async with informing(there, selection(namespace)) as seen:
        await asyncio.wait_for(there.proxy.watched.wait(), 60)
        assert await there.proxy.expire_watches() == 1
        await put("a", "job-1", "2")
        await seen.until({"job-1": {"a": "2"}})
    assert (lists(there), ends(there, "gone")) == (2, 1)


async def test_a_dead_connection_is_noticed_by_its_silence(there, namespace, put):
    async with informing(there, selection(namespace), WatchLimits(silence_seconds=4.0)) as seen:
        await put("a", "job-1", "1")
        await seen.until({"job-1": {"a": "1"}})
        await asyncio.wait_for(there.proxy.watched.wait(), 60)
        with there.proxy.blackout():
            await put("a", "job-1", "2")
            await until(lambda: "is silent" in (seen.informer.trouble or ""))
            assert seen.known == {"job-1": {"a": "1"}}
        await seen.until({"job-1": {"a": "2"}})
        assert seen.informer.trouble is None


async def test_who_does_not_trust_the_watch_has_it_list_anew(there, namespace, put):
    await put("a", "job-1", "1")
    async with informing(there, selection(namespace)) as seen:
        await seen.until({"job-1": {"a": "1"}})
        await put("a", "job-1", "2")
        await asyncio.wait_for(seen.informer.refresh(), 60)
        assert seen.known == {"job-1": {"a": "2"}}
        with there.proxy.blackout():
            there.proxy.cut()
            refreshed = asyncio.gather(seen.informer.refresh(), seen.informer.refresh())
            await put("a", "job-1", "3")
            await asyncio.sleep(0.2)
            assert not refreshed.done()
        await asyncio.wait_for(refreshed, 60)
        assert seen.known == {"job-1": {"a": "3"}}
        await put("b", "job-2", "4")
        await seen.until({"job-1": {"a": "3"}, "job-2": {"b": "4"}})


async def test_watches_that_end_in_time_go_on(here, namespace, put):
    async with informing(here, selection(namespace), WatchLimits(server_seconds=1)) as seen:
        async with asyncio.timeout(60):
            number = 0
            while ends(here, "closed") < 2:
                number += 1
                await put("a", "job-1", str(number))
                await seen.until({"job-1": {"a": str(number)}})
                await asyncio.sleep(0.3)
    assert lists(here) == 1


async def test_a_list_that_expires_between_pages_begins_again(there, namespace, put):
    for number in range(5):
        await put(f"m-{number}", "job-1", str(number))
    there.proxy.inject(Answer(410, reason="Expired"), containing="continue=")
    async with informing(there, selection(namespace), page_size=2) as seen:
        await asyncio.wait_for(seen.informer.synced.wait(), 60)
        assert seen.known == {"job-1": {f"m-{number}": str(number) for number in range(5)}}
    assert lists(there) == 2


async def test_an_api_server_that_restarts_is_waited_for(cluster, there, namespace, put):
    await put("a", "job-1", "1")
    async with informing(there, selection(namespace)) as seen:
        await seen.until({"job-1": {"a": "1"}})
        await asyncio.to_thread(cluster.restart_apiserver, kill=True)
        await put("b", "job-2", "2")
        await seen.until({"job-1": {"a": "1"}, "job-2": {"b": "2"}})


async def test_a_server_that_denies_the_type_for_a_moment_is_not_believed(there, namespace, put):
    """As one that has just started, and has not read yet what is defined in it."""
    await put("a", "job-1", "1")
    async with informing(there, selection(namespace)) as seen:
        await seen.until({"job-1": {"a": "1"}})
        await asyncio.wait_for(there.proxy.watched.wait(), 60)
        there.proxy.inject(Answer(404), times=2, method="GET", containing="limit=")
        assert await there.proxy.expire_watches() == 1
        await put("a", "job-1", "2")
        await seen.until({"job-1": {"a": "2"}})
        assert seen.informer.served and seen.woken == ["job-1", "job-1"]
    assert lists(there) == 4


async def test_missing_rights_are_said_and_their_arrival_is_noticed(cluster, here, namespace, put):
    await put("a", "job-1", "1")
    async with (
        site(find_credentials(cluster.kubeconfig_of(namespace, "default"))) as nobody,
        informing(nobody, selection(namespace)) as seen,
    ):
        await until(lambda: seen.informer.trouble)
        assert "cannot list resource" in seen.informer.trouble
        assert not seen.informer.synced.is_set()
        where = {"namespace": namespace, "name": "reader"}
        await here.client.apply(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "Role",
                "metadata": where,
                "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]}],
            }
        )
        await here.client.apply(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "RoleBinding",
                "metadata": where,
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
                "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": "default"}],
            }
        )
        await seen.until({"job-1": {"a": "1"}})
        assert seen.informer.trouble is None


GADGETS = Resource("test.rljob.dev", "v1", "Gadget", "gadgets")
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"{GADGETS.plural}.{GADGETS.group}"},
    "spec": {
        "group": GADGETS.group,
        "scope": "Namespaced",
        "names": {"kind": GADGETS.kind, "plural": GADGETS.plural},
        "versions": [
            {
                "name": GADGETS.version,
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                },
            }
        ],
    },
}


async def test_a_type_that_comes_and_goes(cluster, here, namespace, tmp_path):
    def install():
        file = tmp_path / "gadgets.yaml"
        file.write_text(yaml.safe_dump(DEFINITION))
        apply_definitions(cluster.api, [file])
        body = {
            "apiVersion": "test.rljob.dev/v1",
            "kind": "Gadget",
            "metadata": {"name": "a", "labels": {"job": "job-1"}},
            "data": {"x": "1"},
        }
        cluster.api.request("POST", GADGETS.path(namespace), body)

    def remove():
        cluster.api.request("DELETE", f"{DEFINITIONS}/{GADGETS.plural}.{GADGETS.group}")

    async with informing(here, selection(namespace, GADGETS), WatchLimits(server_seconds=2)) as seen:
        await asyncio.wait_for(seen.informer.synced.wait(), 60)
        assert (seen.informer.served, seen.known) == (False, {})
        try:
            await asyncio.to_thread(install)
            await seen.until({"job-1": {"a": "1"}})
            assert seen.informer.served
        finally:
            await asyncio.to_thread(remove)
        await seen.until({})
        await until(lambda: not seen.informer.served)


async def test_a_server_that_lost_its_history_is_noticed():
    """etcd begins anew with nothing, as it would with a backup of the cluster's first moment."""
    with Cluster(kuberay=None, nodes={}) as cluster:
        async with site(find_credentials(cluster.kubeconfig)) as made:
            async with asyncio.TaskGroup() as group:
                for number in range(300):
                    group.create_task(made.client.create(config_map("default", f"later-{number}")))
            informer = Informer(
                made.client, selection("default"), lambda owner: None, made.metrics, Random(0), RULES
            )
            running = asyncio.create_task(informer.run())
            await asyncio.wait_for(informer.synced.wait(), 60)
            await asyncio.to_thread(begin_anew, cluster)
            with pytest.raises(HistoryLost, match=r"went back from .* restored from a backup"):
                await asyncio.wait_for(running, 60)


def begin_anew(cluster):
    """The control plane with an empty etcd."""
    parts = ("etcd", "kube-apiserver", "kube-controller-manager")
    for part in reversed(parts):
        cluster.stop_component(part)
    shutil.rmtree(cluster.folder / "etcd")
    for part in parts:
        cluster.start_component(part)


async def test_thousands_of_pods(cluster, here, namespace, capsys):
    await make_pods(here.client, namespace, PODS_IN_ALL)
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.support.operator.informer_start",
            str(cluster.kubeconfig),
            namespace,
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(300):
            printed, _ = await process.communicate()
    finally:
        # The namespace's own deletion would go through them one by one, at leisure. All in one request may
        # take longer than the minute that the API server gives it.
        page = 1000
        path = f"{PODS.path(namespace)}?gracePeriodSeconds=0&limit={page}"
        for _ in range(PODS_IN_ALL // page + 1):
            await asyncio.to_thread(cluster.api.request, "DELETE", path, seconds=120.0)
    assert process.returncode == 0
    figures = json.loads(printed)
    with capsys.disabled():
        print(f"\ninformer over {PODS_IN_ALL:,} pods: {figures}")
    assert (figures["objects"], figures["jobs"], figures["of_first_job"]) == (PODS_IN_ALL, JOBS, 10)
    assert figures["peak"] - figures["before"] < PEAK_MB
