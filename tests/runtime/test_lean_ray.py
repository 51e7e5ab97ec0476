"""Ray as `rljob run` starts it: what it waits for, and the processes that it has."""

import json
import subprocess
import sys

import psutil

from rljob_runtime.site import no_agent
from tests.support.runtime.runs import processes

_STARTS = """
import json, sys, time
from rljob_api import RLJob
from rljob_runtime.site import one_machine

one_machine.prepare()
import ray
from ray._private import services

ask = services.get_node

def timed(*arguments):
    begun = time.monotonic()
    node = ask(*arguments)
    print(time.monotonic() - begun, flush=True)
    return node

services.get_node = timed
with one_machine.started(RLJob.model_validate_json(sys.argv[1])):
    print(json.dumps(ray._private.state.state.get_system_config()), flush=True)

    @ray.remote(num_cpus=0, runtime_env={"env_vars": {"OWN": "yes"}})
    class Actor:
        def own(self):
            import os
            return os.environ["OWN"]

    actor = Actor.remote()
    print(ray.get(actor.own.remote()), flush=True)
    sys.stdin.read()
"""
_RAYS_INTERVAL_SECONDS = 1.0
"""Between two looks of Ray's own function for a node that is not there yet."""


def test_ray_has_no_agent_and_is_seen_when_it_is_there() -> None:
    job = """{"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "lean"}, "spec": {
        "accelerator": "cpu", "pools": {"fastRollout": {"replicas": 1}}, "training": {"model": {"random": {}},
        "tokenizer": {"characters": {}}, "data": {"generated": {"task": "copy", "rows": 8}}, "reward":
        {"function": "rljob_runtime.rewards.tasks:copy"}, "schedule": {"totalSteps": 1}}}}"""
    with subprocess.Popen(
        [sys.executable, "-c", _STARTS, job], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        try:
            assert run.stdout is not None
            # A node is there 0.2 s after Ray asks for the first time, at the earliest.
            assert float(run.stdout.readline()) < _RAYS_INTERVAL_SECONDS
            # The raylet, and who connects to it, looks often, for as long as by default.
            config = json.loads(run.stdout.readline())
            wait = config["raylet_client_connect_timeout_milliseconds"]
            assert wait <= 50
            assert wait * config["raylet_client_num_connect_attempts"] == 10_000
            # Actors with variables of their own start without the agent.
            assert run.stdout.readline() == "yes\n"
            assert processes(run.pid, "DashboardAgent") == []
            [raylet] = processes(run.pid, "raylet/raylet ")
            [stand_in] = raylet_children(raylet)
            raylet.kill()
            _, alive = psutil.wait_procs([stand_in], timeout=30)
            assert not alive
        finally:
            run.kill()


def raylet_children(raylet: psutil.Process) -> list[psutil.Process]:
    """The processes that stand in for the agent."""
    return [each for each in raylet.children() if no_agent.__file__ in each.cmdline()]
