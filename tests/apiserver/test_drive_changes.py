"""What happens to a job that `rljob drive` runs on a Ray cluster of several nodes: other sizes, lost pods."""

import re
from typing import Any

import numpy as np
import pytest

from rljob_runtime.data.length_trace import LENGTHS_FILE, read_length_trace
from rljob_runtime.trace.analyse.event_files import Tally, read_steps
from rljob_runtime.trace.record.event_log import EVENTS_FOLDER
from tests.support.runtime.driven import TEST_SECONDS, Driven, assert_every_prompt_once, driven, hurry, paced
from tests.support.runtime.ray_pods import RayPods
from tests.support.runtime.runs import PROMPTS, manifest
from tests.support.runtime.traces import lines, written
from tools.cluster import Cluster

pytestmark = pytest.mark.timeout(TEST_SECONDS, func_only=True)

LONG = 600
"""Tokens, which take an engine some seconds."""
TRIES = 6
"""So often may a pool have nothing to do when it goes."""
BUSY = re.compile(r" \d+/\d+/\d+ ")
"""Busy shares of all three pools."""
POOLS = {"trainer": {"replicas": 1}, "fastRollout": {"replicas": 1}}


def test_pools_change_their_size_while_every_prompt_is_trained_once(
    cluster: Cluster, namespace: str, pods: RayPods, tmp_path
) -> None:
    steps = 40
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
        run.wait(lambda: run.said.count("serves") >= 3, "the engine's return")
        assert run.training["released"] == []
        run.ask(pools={"fastRollout": {"replicas": 1}})
        released = run.wait_for(lambda training: training["released"], "a released pod")["released"]
        pods.remove(released[0])
        run.wait_for(lambda training: not training["released"], "the pod's end")

        # The trainer from 1 to 2: it goes on until the operator takes that up, stops, the operator resizes
        # its pool, it goes on.
        before = run.training["observedGeneration"]
        run.ask(pools={"trainer": {"replicas": 2}})
        run.wait_for(lambda training: training["observedGeneration"] > before, "the generation")
        run.wait_for_step(len(run.trained()) + 2)
        assert "trainerStoppedFor" not in run.training
        run.operator_saw(trainer=2)
        with run.walking():
            run.wait_for(lambda training: training.get("trainerStoppedFor") == 2, "the trainer's stop")
        stopped_at = len(run.trained())
        pods.add("trainer")
        run.operator_saw()
        run.wait_for(lambda training: "trainerStoppedFor" not in training, "the trainer's return")
        run.wait_for_step(stopped_at + 2)

        # And back to 1, on the newer pod: the one that had the weights goes.
        run.ask(pools={"trainer": {"replicas": 1}})
        run.operator_saw(trainer=1)
        with run.walking():
            run.wait_for(lambda training: training.get("trainerStoppedFor") == 1, "the trainer's second stop")
        pods.remove(pods.pods("trainer")[0])
        run.operator_saw()
        run.wait_for(lambda training: "trainerStoppedFor" not in training, "the trainer's second return")
        hurry(run)
        assert run.end(400) == 0, run.said
    assert_every_prompt_once(run, steps)
    assert run.training["step"] == steps
    assert "the trainer goes on with 2 workers" in run.said
    assert "the trainer goes on with 1 worker" in run.said


def test_lost_pods_and_a_lost_api_server_cost_no_prompt(
    cluster: Cluster, namespace: str, pods: RayPods, tmp_path
) -> None:
    steps = 40
    pools = {"trainer": {"replicas": 1}, "fastRollout": {"replicas": 2}}
    for pool in ("trainer", "fast", "fast"):
        pods.add(pool)
    with driven(cluster, namespace, pods, tmp_path, paced(tmp_path, steps, pools)) as run:
        run.wait(lambda: run.said.count("serves") >= 2, "both engines")
        run.wait_for_step(4)

        cluster.stop_component("kube-apiserver", kill=True)
        before = len(run.trained())
        pods.remove(pods.pods("fast")[0])
        pods.add("fast")
        run.wait(lambda: run.said.count("serves") >= 3, "an engine on the new pod")
        run.wait_for_step(before + 3)
        cluster.start_component("kube-apiserver")
        run.wait_for(lambda training: training["step"] > before, "a status that is written again")

        pods.remove(pods.pods("trainer")[0])
        pods.add("trainer")
        run.wait(lambda: "the trainer goes on from step" in run.said, "the trainer's return")
        hurry(run)
        assert run.end(400) == 0, run.said
    assert_every_prompt_once(run, steps)
    assert run.training["step"] == steps


def test_each_rollout_pool_goes_to_nothing_while_long_responses_run(
    cluster: Cluster, namespace: str, pods: RayPods, tmp_path
) -> None:
    """It begins with one engine, gets a heavy pool, and has work divided by length from then on. Without its
    heavy pool again, and then without its fast one, the job goes on with what ran there.

    It has far more steps than it needs, and is suspended at the end. Engines have nothing to do for a moment
    between two versions: a pool that went just then comes back, and goes once more."""
    steps = 100
    tokens = np.random.default_rng(0).integers(LONG // 3, LONG + 1, (steps * PROMPTS, 2))
    written(tmp_path / "forced.jsonl", lines(tokens, LONG))
    document = manifest(
        tmp_path, steps, POOLS, model={"random": {"maxPositionEmbeddings": 2 * LONG}},
        rollout={
            "engine": {"torch": {}}, "samplesPerPrompt": 2, "maxResponseTokens": LONG,
            "maxRunningRequests": 8, "forcedLengths": "forced.jsonl",
        },
    )[1]  # fmt: skip
    for pool in ("trainer", "fast"):
        pods.add(pool)
    with driven(cluster, namespace, pods, tmp_path, document) as run:
        run.wait_for(lambda training: generates(training, "fast"), "responses in the fast pool")
        come_back(run, "heavy")
        run.wait(lambda: BUSY.search(cluster.kubectl("get", "rlj", "-n", namespace)), "busy pools")
        for pool in ("heavy", "fast"):
            for _ in range(TRIES):
                moved = go(run, pool)
                # One that may have had all its responses before, and one of those that ran.
                run.wait_for_step(len(run.trained()) + 2)
                if moved and pool == "fast":
                    break
                come_back(run, pool)
                if moved:
                    break
            assert moved, run.said
        run.ask(suspend=True)
        assert run.end() == 130, run.said
    trained = len(run.trained())
    assert run.training["suspendedAtStep"] == trained < steps
    assert_every_prompt_once(run, trained)
    trace = read_length_trace(run.run_folder / LENGTHS_FILE)
    assert trace.covered >= trained * PROMPTS
    assert trace.tokens.tolist() == tokens[trace.uids].tolist()
    recorded = read_steps(run.run_folder / EVENTS_FOLDER, Tally())
    assert any(event.event == "division" for _, events in recorded for event in events)


def go(run: Driven, pool: str) -> int:
    """Set a pool that generates to no workers, and take its pod away; how many requests moved."""
    run.wait_for(lambda training: generates(training, pool), f"responses in the {pool} pool")
    run.ask(pools={f"{pool}Rollout": {"replicas": 0}})
    pod = run.wait_for(lambda training: training["released"], f"a free {pool} pod")["released"][0]
    told = re.compile(rf"{pool}-\d+ on {pod} is released; (\d+) requests moved")
    run.wait(lambda: told.search(run.said), "a line about it")
    run.pods.remove(pod)
    found = told.search(run.said)
    assert found is not None
    return int(found[1])


def generates(training: dict[str, Any], pool: str) -> bool:
    loads = {load["name"]: load for load in training.get("load", {}).get("pools", [])}
    return (loads.get(f"{pool}Rollout", {}).get("running") or 0) > 0


def come_back(run: Driven, pool: str) -> None:
    served = run.said.count("serves")
    run.ask(pools={f"{pool}Rollout": {"replicas": 1}})
    run.pods.add(pool)
    run.wait(lambda: run.said.count("serves") > served, f"a new {pool} engine")
