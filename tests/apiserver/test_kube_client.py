"""The API client against a real API server."""

import asyncio
import base64
import socket
import ssl
from dataclasses import replace
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
import yaml

from rljob_client.client import WatchLimits
from rljob_client.credentials import Credentials, find_credentials
from rljob_client.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NoSuchResource,
    NotFound,
    Unauthorized,
    Unreachable,
)
from rljob_client.identity import Identity
from rljob_client.objects import Item
from rljob_client.resources import CONFIG_MAPS, PODS, RLJOBS, Resource
from rljob_client.shared_login import FILE_PACE, SharedLogin
from tests.support.jobs import job
from tests.support.operator.config_maps import config_map, data_of
from tests.support.operator.fault_proxy import Answer
from tests.support.operator.kube_site import RETRY, site


class TestApply:
    async def test_makes_changes_and_drops_its_own_fields(self, here, namespace):
        first = await here.client.apply(config_map(namespace, x="1", y="2"))
        again = await here.client.apply(config_map(namespace, x="1", y="2"))
        assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
        await here.client.apply(config_map(namespace, x="3"))
        assert await data_of(here.client, namespace) == {"x": "3"}

    async def test_leaves_the_fields_of_others(self, here, namespace):
        await here.other("somebody").apply(config_map(namespace, theirs="1"))
        await here.client.apply(config_map(namespace, ours="2"))
        await here.client.apply(config_map(namespace))
        assert await data_of(here.client, namespace) == {"theirs": "1"}

    async def test_a_conflict_names_the_manager_and_force_takes_the_field(self, here, namespace):
        await here.other("somebody").apply(config_map(namespace, x="1"))
        with pytest.raises(Conflict, match='"somebody"') as caught:
            await here.client.apply(config_map(namespace, x="2"), force=False)
        assert caught.value.caused_by("FieldManagerConflict")
        await here.client.apply(config_map(namespace, x="2"))
        with pytest.raises(Conflict, match='"rljob-operator"'):
            await here.other("somebody").apply(config_map(namespace, x="1"), force=False)

    async def test_with_a_version_only_while_nobody_wrote(self, here, namespace):
        seen = await here.client.apply(config_map(namespace, x="1"))
        await here.other("somebody").apply(config_map(namespace, y="1"))
        late = config_map(namespace, x="2")
        late["metadata"]["resourceVersion"] = seen["metadata"]["resourceVersion"]
        with pytest.raises(Conflict, match="object has been modified"):
            await here.client.apply(late)

    async def test_an_unknown_field_is_refused_instead_of_dropped(self, here, namespace):
        with pytest.raises(Invalid, match="typo"):
            await here.client.apply({**config_map(namespace), "typo": 1})


class TestStatus:
    @pytest.fixture
    async def applied(self, here, namespace):
        """An RLJob without a status, as its identity."""
        manifest = job({"/metadata.namespace": namespace})
        await here.client.apply(manifest)
        return {key: manifest[key] for key in ("apiVersion", "kind", "metadata")}

    async def test_operator_and_driver_keep_their_parts(self, here, applied, namespace):
        driver = here.other("rljob-runtime")
        training = {"step": 3, "totalSteps": 5, "weightVersion": 3}
        await here.client.apply_status({**applied, "status": {"phase": "Starting", "attempt": 1}})
        await driver.apply_status({**applied, "status": {"training": training}})
        await here.client.apply_status({**applied, "status": {"phase": "Running", "attempt": 1}})
        status = (await here.client.get(RLJOBS, namespace, applied["metadata"]["name"], dict))["status"]
        assert (status["phase"], status["training"]["step"]) == ("Running", 3)

    async def test_a_field_that_an_older_definition_lacks_is_refused_by_name(self, here, applied):
        with pytest.raises(Invalid, match=r"\.status\.fromTheFuture: field not declared in schema"):
            await here.client.apply_status({**applied, "status": {"attempt": 1, "fromTheFuture": 1}})
        assert here.calls("apply", "rljobs", "500") == 1

    async def test_the_spec_is_not_touched(self, here, applied):
        answer = await here.client.apply_status(
            {**applied, "spec": {"suspend": True}, "status": {"attempt": 1}}
        )
        assert answer["spec"].get("suspend", False) is False
        assert answer["metadata"]["generation"] == 1

    async def test_a_status_that_breaks_its_schema_is_refused_with_the_place(self, here, applied):
        with pytest.raises(Invalid, match=r"status\.attempt"):
            await here.client.apply_status({**applied, "status": {"attempt": -1}})


class TestPatchAndDelete:
    async def test_a_patch_with_a_version_is_made_once(self, here, namespace):
        seen = (await here.client.apply(config_map(namespace, x="1")))["metadata"]["resourceVersion"]
        await here.client.patch(CONFIG_MAPS, namespace, "a", {"data": {"x": None, "y": "2"}}, seen)
        assert await data_of(here.client, namespace) == {"y": "2"}
        with pytest.raises(Conflict):
            await here.client.patch(CONFIG_MAPS, namespace, "a", {"data": {"x": "3"}}, seen)

    async def test_only_the_object_that_was_meant_is_deleted(self, here, namespace):
        old = (await here.client.apply(config_map(namespace)))["metadata"]
        await here.client.delete(CONFIG_MAPS, namespace, "a", old["uid"])
        new = (await here.client.apply(config_map(namespace)))["metadata"]
        with pytest.raises(Conflict):
            await here.client.delete(CONFIG_MAPS, namespace, "a", old["uid"])
        await here.client.patch(CONFIG_MAPS, namespace, "a", {"data": {"x": "1"}})
        with pytest.raises(Conflict):
            await here.client.delete(CONFIG_MAPS, namespace, "a", new["uid"], new["resourceVersion"])
        await here.client.delete(CONFIG_MAPS, namespace, "a", new["uid"])
        with pytest.raises(NotFound):
            await here.client.delete(CONFIG_MAPS, namespace, "a", new["uid"])

    async def test_what_is_there_is_not_created(self, here, namespace):
        await here.client.create(config_map(namespace))
        with pytest.raises(AlreadyExists):
            await here.client.create(config_map(namespace))


class TestReading:
    async def test_lists_in_pages(self, here, namespace):
        for number in range(7):
            await here.client.create({**config_map(namespace, f"m-{number}"), "data": {"n": str(number)}})
        pages = [page async for page in here.client.pages(CONFIG_MAPS, Item, namespace, page_size=3)]
        # With the namespace's own ConfigMap, the root certificate.
        assert [len(page.items) for page in pages] == [3, 3, 2]
        assert len({page.metadata.resource_version for page in pages}) == 1
        names = {item.metadata.name for item in await here.client.list(CONFIG_MAPS, Item, namespace)}
        assert names == {"kube-root-ca.crt", *(f"m-{number}" for number in range(7))}

    async def test_a_list_whose_snapshot_is_gone_begins_again(self, there, namespace):
        for number in range(4):
            await there.client.create(config_map(namespace, f"m-{number}"))
        there.proxy.inject(Answer(410, reason="Expired"), containing="continue=")
        pages = there.client.pages(CONFIG_MAPS, Item, namespace, page_size=2)
        with pytest.raises(Gone):
            [page async for page in pages]

    async def test_selects_by_label(self, here, namespace):
        for name, labels in (("a", {"rljob.dev/job": "x"}), ("b", {"rljob.dev/job": "y"})):
            manifest = config_map(namespace, name)
            manifest["metadata"]["labels"] = labels
            await here.client.create(manifest)
        found = await here.client.list(CONFIG_MAPS, Item, namespace, "rljob.dev/job in (x, z)")
        assert [item.metadata.name for item in found] == ["a"]

    async def test_missing_objects_and_missing_types_differ(self, here, namespace):
        with pytest.raises(NotFound, match='configmaps "none" not found') as caught:
            await here.client.get(CONFIG_MAPS, namespace, "none", Item)
        assert not isinstance(caught.value, NoSuchResource)
        with pytest.raises(NoSuchResource, match="install its CustomResourceDefinition"):
            await here.client.list(Resource("none.example", "v1", "None", "nones"), Item)

    async def test_a_watch_gives_changes_bookmarks_and_an_end(self, here, namespace):
        page = [page async for page in here.client.pages(CONFIG_MAPS, Item, namespace)][-1]
        version = page.metadata.resource_version
        async with here.client.watch(CONFIG_MAPS, Item, version, namespace) as changes:
            made = (await here.client.create(config_map(namespace)))["metadata"]
            await here.client.patch(CONFIG_MAPS, namespace, "a", {"data": {"x": "1"}})
            await here.client.delete(CONFIG_MAPS, namespace, "a", made["uid"])
            seen = [await anext(changes) for _ in range(3)]
        assert [change.kind for change in seen] == ["ADDED", "MODIFIED", "DELETED"]
        # The server sends a bookmark two seconds before it ends a watch, if it comes to it in time,
        # and only if something of the kind has changed since in a namespace that is not watched.
        limits = WatchLimits(server_seconds=3)
        async with asyncio.timeout(60):
            while seen[-1].kind != "BOOKMARK":
                async with here.client.watch(
                    CONFIG_MAPS, Item, seen[-1].version, namespace, limits=limits
                ) as changes:
                    elsewhere = config_map("default", name=f"bookmark-{uuid4().hex}")
                    made = (await here.client.create(elsewhere))["metadata"]
                    await here.client.delete(CONFIG_MAPS, "default", made["name"], made["uid"])
                    seen += [change async for change in changes]
        assert {change.kind for change in seen[3:]} == {"BOOKMARK"}
        assert all(change.version for change in seen)

    async def test_a_watch_from_long_ago_is_gone(self, there, namespace):
        there.proxy.inject(Answer(410, reason="Expired"), containing="watch=true")
        with pytest.raises(Gone):
            async with there.client.watch(CONFIG_MAPS, Item, "1", namespace):
                pytest.fail("the watch began")

    async def test_an_expired_watch_ends_with_gone(self, there, namespace):
        version = (await there.client.create(config_map(namespace)))["metadata"]["resourceVersion"]
        with pytest.raises(Gone, match="too old resource version"):
            async with there.client.watch(CONFIG_MAPS, Item, version, namespace) as changes:
                assert await there.proxy.expire_watches() == 1
                async for _ in changes:
                    pytest.fail("nothing had changed")


class TestRefusals:
    async def test_rbac_says_who_may_not_do_what(self, cluster, here, namespace):
        async with site(find_credentials(cluster.kubeconfig_of(namespace, "default"))) as nobody:
            with pytest.raises(Forbidden, match=rf"{namespace}:default.*cannot list resource .pods."):
                await nobody.client.list(PODS, Item, namespace)
            assert nobody.calls("list", "pods", "403") == 1

    async def test_a_wrong_token_is_said_to_be_wrong(self, cluster):
        wrong = SharedLogin(lambda: Identity("Bearer wrong"), FILE_PACE)
        right = find_credentials(cluster.kubeconfig)
        async with site(replace(right, authorization=wrong)) as stranger:
            with pytest.raises(Unauthorized, match="the token or certificate in use is wrong or has expired"):
                await stranger.client.list(PODS, Item, "default")

    async def test_a_server_that_is_not_who_it_says_is_not_talked_to(self, cluster):
        right = find_credentials(cluster.kubeconfig)
        async with site(replace(right, tls=ssl.create_default_context())) as wary:
            with pytest.raises(Unreachable, match="certificate verify failed"):
                await wary.client.list(PODS, Item, "default")

    async def test_nobody_listens(self):
        # Bound, so that nobody else gets the port, and never listened on.
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            address = f"http://127.0.0.1:{taken.getsockname()[1]}"
            async with site(Credentials(address, None)) as lost:
                with pytest.raises(Unreachable, match=rf"cannot connect to {address}: Connect"):
                    await lost.client.list(PODS, Item, "default")
                assert lost.calls("list", "pods", "none") == RETRY.attempts


@pytest.fixture
def service_account(cluster, namespace, tmp_path):
    """A pod's service account, as the kubelet mounts it, and its environment."""
    found = yaml.safe_load(cluster.kubeconfig_of(namespace, "default").read_text())
    server = urlsplit(found["clusters"][0]["cluster"]["server"])
    authority = base64.b64decode(found["clusters"][0]["cluster"]["certificate-authority-data"])
    (tmp_path / "ca.crt").write_bytes(authority)
    (tmp_path / "namespace").write_text(namespace)
    (tmp_path / "token").write_text(found["users"][0]["user"]["token"])
    environment = {"KUBERNETES_SERVICE_HOST": server.hostname, "KUBERNETES_SERVICE_PORT": str(server.port)}
    return environment, tmp_path


class TestServiceAccount:
    async def test_speaks_as_the_pod(self, service_account, namespace):
        environment, folder = service_account
        credentials = find_credentials(environment=environment, service_account=folder)
        async with site(credentials) as pod:
            with pytest.raises(Forbidden, match=f"system:serviceaccount:{namespace}:default"):
                await pod.client.list(PODS, Item, credentials.namespace)

    async def test_a_token_that_was_rotated_is_read_again(self, service_account, namespace):
        environment, folder = service_account
        valid = (folder / "token").read_text()
        (folder / "token").write_text("expired")
        credentials = find_credentials(environment=environment, service_account=folder)
        async with site(credentials) as pod:
            with pytest.raises(Unauthorized):
                await pod.client.list(PODS, Item, namespace)
            (folder / "token").write_text(valid)
            with pytest.raises(Forbidden):
                await pod.client.list(PODS, Item, namespace)
