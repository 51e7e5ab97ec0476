"""`rljob drive` from the API server to its exit code, on a Ray cluster of several nodes."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.runtime.driven import Driven, driven
from tests.support.runtime.ray_pods import RayPods
from tests.support.runtime.runs import PROMPTS, manifest
from tools.cluster import Cluster

pytestmark = pytest.mark.timeout(600)

POOLS = {"trainer": {"replicas": 1}, "fastRollout": {"replicas": 1}}


SLOW = "slow"
"""While a file of this name is in the working directory, a step takes about a second."""
REWARD = f"""
import os, time
from rljob_runtime.rewards.tasks import copy

def paced(sample):
    if os.path.exists({SLOW!r}):
        time.sleep(0.1)
    return copy(sample)
"""


def paced(folder: Path, steps: int, pools: dict[str, Any], **training: Any) -> dict[str, Any]:
    """A job whose reward comes from the working directory and holds it up until `hurry`."""
    (folder / "pace.py").write_text(REWARD)
    (folder / SLOW).touch()
    reward = {"function": "pace:paced", "workers": 1}
    return manifest(folder, steps, pools, reward=reward, **training)[1]


def hurry(run: Driven) -> None:
    (run.folder / SLOW).unlink()


def assert_every_prompt_once(run: Driven, steps: int) -> None:
    trained = run.trained()
    assert sorted(trained) == list(range(steps))
    assert sorted(uid for uids in trained.values() for uid in uids) == list(range(steps * PROMPTS))


@pytest.fixture
def pods() -> Iterator[RayPods]:
    with RayPods() as pods:
        yield pods


def test_a_job_runs_to_its_end_and_says_so(cluster: Cluster, namespace: str, pods: RayPods, tmp_path) -> None:
    steps = 4
    for pool in ("trainer", "fast"):
        pods.add(pool)
    with driven(cluster, namespace, pods, tmp_path, manifest(tmp_path, steps, POOLS)[1]) as run:
        assert run.end(300) == 0, run.said
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


def test_pools_change_their_size_while_every_prompt_is_trained_once(
    cluster: Cluster, namespace: str, pods: RayPods, tmp_path
) -> None:
    steps = 200
    for pool in ("trainer", "fast"):
        pods.add(pool)
    with driven(cluster, namespace, pods, tmp_path, paced(tmp_path, steps, POOLS)) as run:
        run.wait_for_step(3)

        # Fast from 1 to 2: the operator makes the pod at once, the runtime starts an engine there.
        run.ask(pools={"fastRollout": {"replicas": 2}})
        pods.add("fast")
        run.wait(lambda: "rollout worker fast-1 serves" in run.said, "the second engine")
        run.wait_for(lambda training: training["observedGeneration"] == 2, "the generation")

        # Back to 1: the runtime names a pod, the operator takes it.
        run.ask(pools={"fastRollout": {"replicas": 1}})
        released = run.wait_for(lambda training: training["released"], "a released pod")["released"]
        assert len(released) == 1

        # 2 again before the operator has taken it: it comes back, and goes once more.
        run.ask(pools={"fastRollout": {"replicas": 2}})
        run.wait(lambda: run.said.count("serves") == 3, "the engine's return")
        assert run.training["released"] == []
        run.ask(pools={"fastRollout": {"replicas": 1}})
        released = run.wait_for(lambda training: training["released"], "a released pod")["released"]
        pods.remove(released[0])
        run.wait_for(lambda training: not training["released"], "the pod's end")

        # The trainer from 1 to 2: it stops, the operator resizes its pool, it goes on.
        run.ask(pools={"trainer": {"replicas": 2}})
        run.wait_for(lambda training: training.get("trainerStoppedFor") == 2, "the trainer's stop")
        stopped_at = len(run.trained())
        pods.add("trainer")
        run.operator_saw()
        run.wait_for(lambda training: "trainerStoppedFor" not in training, "the trainer's return")
        run.wait_for_step(stopped_at + 2)

        # And back to 1, on the newer pod: the one that had the weights goes.
        run.ask(pools={"trainer": {"replicas": 1}})
        run.wait_for(lambda training: training.get("trainerStoppedFor") == 1, "the trainer's second stop")
        pods.remove(pods.pods("trainer")[0])
        run.operator_saw()
        run.wait_for(lambda training: "trainerStoppedFor" not in training, "the trainer's second return")
        hurry(run)
        assert run.end(300) == 0, run.said
    assert_every_prompt_once(run, steps)
    assert run.training["step"] == steps
    assert "the trainer goes on with 2 workers" in run.said
    assert "the trainer goes on with 1 worker" in run.said


def test_a_suspended_job_goes_on_where_it_was(
    cluster: Cluster, namespace: str, pods: RayPods, tmp_path
) -> None:
    steps = 40
    for pool in ("trainer", "fast"):
        pods.add(pool)
    with driven(cluster, namespace, pods, tmp_path, paced(tmp_path, steps, POOLS)) as run:
        run.wait_for_step(2)
        run.ask(suspend=True)
        assert run.end() == 130, run.said
        training = run.training
        assert training["suspendedAtStep"] == len(run.trained()) == training["checkpoint"]["step"]
        assert not training.get("completed")
        assert not run.termination_log.exists()
        run.ask(suspend=False)
        hurry(run)
        run.start()
        assert run.end(300) == 0, run.said
    assert_every_prompt_once(run, steps)
    training = run.training
    assert training["attempt"] == 2
    assert "suspendedAtStep" not in training


def test_a_sigterm_stops_with_a_checkpoint(cluster: Cluster, namespace: str, pods: RayPods, tmp_path) -> None:
    for pool in ("trainer", "fast"):
        pods.add(pool)
    with driven(cluster, namespace, pods, tmp_path, paced(tmp_path, 40, POOLS)) as run:
        run.wait_for_step(2)
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 130, run.said
    training = run.training
    assert training["checkpoint"]["step"] == len(run.trained())
    assert "suspendedAtStep" not in training


def test_lost_pods_and_a_lost_api_server_cost_no_prompt(
    cluster: Cluster, namespace: str, pods: RayPods, tmp_path
) -> None:
    steps = 160
    pools = {"trainer": {"replicas": 1}, "fastRollout": {"replicas": 2}}
    for pool in ("trainer", "fast", "fast"):
        pods.add(pool)
    with driven(cluster, namespace, pods, tmp_path, paced(tmp_path, steps, pools)) as run:
        run.wait(lambda: "rollout worker fast-1 serves" in run.said, "both engines")
        run.wait_for_step(4)

        cluster.stop_component("kube-apiserver", kill=True)
        before = len(run.trained())
        pods.remove(pods.pods("fast")[0])
        pods.add("fast")
        run.wait(lambda: run.said.count("serves") == 3, "an engine on the new pod")
        run.wait_for_step(before + 3)
        cluster.start_component("kube-apiserver")
        run.wait_for(lambda training: training["step"] > before, "a status that is written again")

        pods.remove(pods.pods("trainer")[0])
        pods.add("trainer")
        run.wait(lambda: "the trainer goes on from step" in run.said, "the trainer's return")
        hurry(run)
        assert run.end(300) == 0, run.said
    assert_every_prompt_once(run, steps)
    assert run.training["step"] == steps
