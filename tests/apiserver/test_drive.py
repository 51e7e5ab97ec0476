"""`rljob drive` from the API server to its exit code, on a Ray cluster of several nodes."""

import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.runtime.driven import (
    TEST_SECONDS,
    Driven,
    assert_every_prompt_once,
    driven,
    hurry,
    paced,
)
from tests.support.runtime.prepared import prepared_workers
from tests.support.runtime.ray_pods import RayPods
from tests.support.runtime.runs import manifest
from tools.cluster import Cluster

pytestmark = pytest.mark.timeout(TEST_SECONDS, func_only=True)

BUSY = re.compile(r" \d+/\d+/- ")
"""Busy shares of trainer and fast pool, where there is no heavy one."""
LIVELY_SECONDS = 60
"""A driver touches its file every ten; the machine may do much else."""
POOLS = {"trainer": {"replicas": 1}, "fastRollout": {"replicas": 1}}


@pytest.fixture(scope="module")
def pods() -> Iterator[RayPods]:
    """A trainer and a fast rollout worker, for one job after the other: none of them loses a pod."""
    with prepared_workers(), RayPods() as made:
        for pool in ("trainer", "fast"):
            made.add(pool)
        yield made


def test_a_job_runs_to_its_end_and_says_so(cluster: Cluster, namespace: str, pods: RayPods, tmp_path) -> None:
    steps = 4
    with driven(cluster, namespace, pods, tmp_path, manifest(tmp_path, steps, POOLS)[1]) as run:
        assert run.end(400) == 0, run.said
    assert_every_prompt_once(run, steps)
    training = run.training
    assert training["attempt"] == 1
    assert training["progress"] == f"{steps}/{steps}"
    assert training["checkpoint"]["step"] == steps
    assert training["observedGeneration"] == 1
    assert training["completed"]
    assert not run.termination_log.exists()
    assert (run.run_folder / "report.html").exists()
    assert (run.run_folder / "driver.log").exists()
    assert_key_is_kept(run)


def assert_key_is_kept(run: Driven) -> None:
    """The job's key is in nothing that the run leaves behind, and in none of Ray's logs."""
    key = run.key_file.read_text().encode()
    files = [path for path in run.folder.rglob("*") if path.is_file() and path != run.key_file]
    logs = [path for path in Path(run.pods.logs).rglob("*") if path.is_file()]
    assert run.log in files and logs
    assert [path for path in [*files, *logs] if key in path.read_bytes()] == []
    assert key.decode() not in json.dumps(run.cluster.api.request("GET", run.path))


def test_a_suspended_job_goes_on_where_it_was(
    cluster: Cluster, namespace: str, pods: RayPods, tmp_path
) -> None:
    steps = 30
    with driven(cluster, namespace, pods, tmp_path, paced(tmp_path, steps, POOLS)) as run:
        run.wait_for_step(2)
        with run.walking():
            load = run.wait_for(lambda training: training.get("load"), "how busy the pools are")["load"]
        assert [pool["name"] for pool in load["pools"]] == ["trainer", "fastRollout"]
        assert all(0 <= pool["busyPercent"] <= 100 for pool in load["pools"])
        assert BUSY.search(run.cluster.kubectl("get", "rlj", "-n", namespace))
        run.ask(suspend=True)
        assert run.end() == 130, run.said
        training = run.training
        assert "load" not in training
        assert training["suspendedAtStep"] == len(run.trained()) == training["checkpoint"]["step"]
        assert not training.get("completed")
        assert not run.termination_log.exists()
        run.ask(suspend=False)
        hurry(run)
        run.start()
        assert run.end(400) == 0, run.said
    assert_every_prompt_once(run, steps)
    training = run.training
    assert training["attempt"] == 2
    assert "suspendedAtStep" not in training


def test_a_sigterm_stops_with_a_checkpoint(cluster: Cluster, namespace: str, pods: RayPods, tmp_path) -> None:
    with driven(cluster, namespace, pods, tmp_path, paced(tmp_path, 40, POOLS)) as run:
        run.wait_for_step(2)
        assert time.time() - run.alive_file.stat().st_mtime < LIVELY_SECONDS
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 130, run.said
        assert not run.alive_file.exists()
    training = run.training
    assert training["checkpoint"]["step"] == len(run.trained())
    assert "suspendedAtStep" not in training
