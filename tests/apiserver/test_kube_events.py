"""Events as the API server and kubectl have them."""

import asyncio
import time
from random import Random

import pytest

from rljob_client.resources import CONFIG_MAPS, EVENTS
from rljob_operator.kube.event_recorder import EventRecorder, Happening, ObjectReference
from tests.support.operator.fault_proxy import Answer, Cut

LOST = Happening(
    "Warning", "RolloutWorkerLost", "Replacing", "math-1-fast-rollout-x7k2p (node gpu-14 NotReady)"
)
CREATED = Happening("Normal", "CreatedRayCluster", "Creating", "Created RayCluster math-1")


@pytest.fixture
async def math(there, namespace):
    """The object that events are about."""
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": namespace, "name": "math"}}
    uid = (await there.client.create(manifest))["metadata"]["uid"]
    return ObjectReference("v1", "ConfigMap", namespace, "math", uid)


@pytest.fixture
def recorder(there):
    return EventRecorder("rljob-operator-7c9f", there.metrics, Random(0))


async def written(there, namespace):
    """The namespace's Events, oldest first."""
    found = await there.client.list(EVENTS, dict, namespace)
    return sorted(found, key=lambda event: event["eventTime"])


async def until_written(there, namespace):
    """Wait for the one Event; its metadata."""
    async with asyncio.timeout(60):
        while not (found := await written(there, namespace)):  # noqa: ASYNC110 - nobody is called
            await asyncio.sleep(0.05)
    return found[0]["metadata"]


def outcomes(there):
    every = ("created", "repeated", "dropped", "failed")
    counts = {outcome: there.measured("rljob_events_total", outcome=outcome) for outcome in every}
    return {outcome: count for outcome, count in counts.items() if count}


async def test_an_event_is_what_kubectl_shows(cluster, there, recorder, math):
    recorder.start(there.client)
    recorder.record(math, CREATED)
    recorder.record(math, LOST)
    await recorder.stop(60)
    first, second = await written(there, math.namespace)
    assert first["regarding"]["uid"] == math.uid
    assert (first["type"], first["reason"], first["action"]) == ("Normal", "CreatedRayCluster", "Creating")
    assert first["reportingController"] == "rljob.dev/operator"
    assert first["reportingInstance"] == "rljob-operator-7c9f"
    assert second["note"] == LOST.note
    shown = await asyncio.to_thread(cluster.kubectl, "-n", math.namespace, "describe", "configmap", "math")
    assert "Warning  RolloutWorkerLost" in shown
    assert "rljob.dev/operator" in shown


async def test_repeats_are_counted_in_one_event(there, recorder, math):
    recorder.start(there.client)
    recorder.record(math, LOST)
    await until_written(there, math.namespace)
    for _ in range(4):
        recorder.record(math, LOST)
    await recorder.stop(60)
    (event,) = await written(there, math.namespace)
    assert event["series"]["count"] == 5
    assert outcomes(there) == {"created": 1, "repeated": 1}


async def test_repeats_before_the_first_is_written_are_in_it(there, recorder, math):
    for _ in range(3):
        recorder.record(math, LOST)
    recorder.start(there.client)
    await recorder.stop(60)
    (event,) = await written(there, math.namespace)
    assert event["series"]["count"] == 3
    assert outcomes(there) == {"created": 1}


async def test_an_event_that_expired_is_made_anew(there, recorder, math):
    recorder.start(there.client)
    recorder.record(math, LOST)
    old = await until_written(there, math.namespace)
    await there.client.delete(EVENTS, math.namespace, old["name"], old["uid"])
    recorder.record(math, LOST)
    await recorder.stop(60)
    (event,) = await written(there, math.namespace)
    assert event["metadata"]["name"] != old["name"]


async def test_a_flood_about_one_object_is_cut(there, recorder, math):
    recorder.start(there.client)
    for number in range(40):
        recorder.record(math, Happening("Normal", "ScaledUp", "Scaling", f"fast-rollout to {number}"))
    await recorder.stop(60)
    assert len(await written(there, math.namespace)) == 25
    assert outcomes(there) == {"created": 25, "dropped": 15}


async def test_nobody_waits_for_an_api_server_that_is_away(there, recorder, math):
    recorder.start(there.client)
    passed = len(there.proxy.passed)
    # What waited for an answer would wait for ever: nothing passes until all are recorded.
    async with asyncio.timeout(60):
        with there.proxy.blackout():
            for number in range(25):
                recorder.record(math, Happening("Normal", "ScaledUp", "Scaling", f"fast-rollout to {number}"))
                await asyncio.sleep(0)
            assert len(there.proxy.passed) == passed
    await recorder.stop(60)
    assert len(await written(there, math.namespace)) == 25


async def test_memory_is_bounded(there, math):
    recorder = EventRecorder("rljob-operator-7c9f", there.metrics, Random(0), most_pending=10)
    for number in range(15):
        recorder.record(math, Happening("Normal", "ScaledUp", "Scaling", f"fast-rollout to {number}"))
    recorder.start(there.client)
    await recorder.stop(60)
    assert outcomes(there) == {"created": 10, "dropped": 5}


@pytest.mark.parametrize(
    ("fault", "events", "outcome"),
    [
        (Answer(500), 1, "created"),
        (Cut(carried_out=True), 1, "created"),
        (Answer(403, "exceeded quota"), 0, "failed"),
    ],
    ids=str,
)
async def test_faults(there, recorder, math, fault, events, outcome):
    there.proxy.inject(fault, containing="/events")
    recorder.start(there.client)
    recorder.record(math, CREATED)
    await recorder.stop(60)
    assert len(await written(there, math.namespace)) == events
    assert outcomes(there) == {outcome: 1}


async def test_in_a_namespace_that_is_being_deleted_nothing_is_said(
    there, recorder, cluster, namespace, caplog
):
    going = f"{namespace}-going"[-63:].lstrip("-")
    place = f"/api/v1/namespaces/{going}"
    cluster.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": going}})
    # By its finalizer the namespace stays while it goes.
    holds = {"metadata": {"name": "holds", "finalizers": ["rljob.dev/test"]}}
    cluster.api.request("POST", f"{place}/configmaps", holds)
    cluster.api.request("DELETE", place)
    recorder.start(there.client)
    recorder.record(ObjectReference("v1", "ConfigMap", going, "holds", "1"), CREATED)
    await recorder.stop(60)
    cluster.api.request("PATCH", f"{place}/configmaps/holds", {"metadata": {"finalizers": None}})
    assert outcomes(there) == {"dropped": 1}
    assert "CreatedRayCluster" not in caplog.text


async def test_stop_does_not_wait_longer_than_its_grace(there, recorder, math):
    recorder.start(there.client)
    with there.proxy.blackout():
        recorder.record(math, CREATED)
        began = time.monotonic()
        await recorder.stop(0.5)
        assert time.monotonic() - began < 30.0  # its client tries for two minutes


async def test_long_notes_and_names_fit(there, recorder, namespace):
    name = "a" * 253
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": namespace, "name": name}}
    uid = (await there.client.create(manifest))["metadata"]["uid"]
    recorder.start(there.client)
    about = ObjectReference("v1", "ConfigMap", namespace, name, uid)
    recorder.record(about, Happening("Warning", "Failed", "Running", "é" * 2000))
    await recorder.stop(60)
    (event,) = await written(there, namespace)
    assert len(event["note"].encode()) <= 1024
    assert event["note"].endswith("é…")
    assert (await there.client.get(CONFIG_MAPS, namespace, name, dict))["metadata"]["uid"] == uid
