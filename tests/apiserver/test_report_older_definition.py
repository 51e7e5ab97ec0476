"""A driver's report to an API server whose definition of RLJobs is older than the runtime."""

import asyncio
import random
import time
from dataclasses import replace

import pytest
import yaml

from rljob_client.credentials import find_credentials
from rljob_runtime.cluster.api import ApiClient
from rljob_runtime.cluster.own_job import Identity
from rljob_runtime.cluster.report import Reporter
from rljob_runtime.site.desired import DesiredState
from rljob_runtime.site.status_draft import StatusDraft
from rljob_runtime.view.progress import Header, Progress
from tests.support.jobs import job
from tools.cluster import Cluster
from tools.cluster.api import RETRY_SECONDS, ApiError
from tools.cluster.cluster import RLJOB_DEFINITION
from tools.cluster.custom_resources import apply_definitions

DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/rljobs.rljob.dev"
JOBS = "/apis/rljob.dev/v1alpha1/namespaces/default/rljobs"
PROGRESS = Progress(
    Header("test", "cpu", {}, "torch", "tiny", 1.0), step=3, total_steps=10, reward=0.5, version=2,
    staleness_mean=0.4, staleness_max=1, masked_share=0.1, busy={"fast": 0.9, "trainer": 0.5},
)  # fmt: skip


@pytest.fixture
def old(programs, tmp_path):
    """A cluster whose definition knows neither `load` nor `staleness.masked`."""
    definition = yaml.safe_load(RLJOB_DEFINITION.read_text())
    [version] = definition["spec"]["versions"]
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    training = status["training"]["properties"]
    del training["load"], training["staleness"]["properties"]["masked"]
    file = tmp_path / "definition.yaml"
    file.write_text(yaml.safe_dump(definition))
    with Cluster(kuberay=None, nodes={}, scheduler=False) as cluster:
        # A definition that is changed is served in both forms for a while.
        cluster.api.request("DELETE", DEFINITION)
        wait_until_unserved(cluster)
        apply_definitions(cluster.api, [file])
        yield cluster


def wait_until_unserved(cluster: Cluster) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        cluster.api.check()
        try:
            cluster.api.request("GET", JOBS)
        except ApiError as error:
            if error.status == 404:
                return
        time.sleep(RETRY_SECONDS)
    raise TimeoutError("the definition is deleted and still served")


async def test_what_it_does_not_know_is_left_out_and_answers_reach_the_operator(old: Cluster, caplog) -> None:
    made = old.api.request("POST", JOBS, job({"/metadata.name": "test", "/metadata.namespace": "default"}))
    draft = StatusDraft(attempt=1)
    async with ApiClient(find_credentials(old.kubeconfig)) as client:
        reporter = Reporter(
            client, Identity("default", "test"), made["metadata"]["uid"], draft,
            lambda: DesiredState(1, 1, 1, 0), lambda: None, random.Random(0),
            asyncio.get_running_loop().time,
        )  # fmt: skip
        running = asyncio.create_task(reporter.run())
        draft.progress(PROGRESS)
        assert await reporter.flush(60)
        draft.progress(replace(PROGRESS, step=4, busy={"fast": 0.1, "trainer": 0.9}))
        draft.released(["a"])
        assert await reporter.flush(60)
        running.cancel()
    training = old.api.request("GET", f"{JOBS}/test")["status"]["training"]
    assert (training["step"], training["released"]) == (4, ["a"])
    assert "load" not in training and "staleness" not in training
    told = [record.getMessage() for record in caplog.records if "older than this runtime" in record.message]
    # The API server names both fields at once, or one after the other.
    assert len(told) in (1, 2) and "load, staleness" in told[-1] and len(set(told)) == len(told)
