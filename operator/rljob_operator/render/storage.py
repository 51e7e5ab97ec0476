"""Volumes of the job's pods and where they are mounted.

Guarantees: all containers of a pod share the same scratch space, shared memory and run folder; whatever a
process may write is on a volume.
"""

from typing import Any

from rljob_api.kubernetes import Storage
from rljob_operator.plan.volume import path_in_volume
from rljob_operator.render.names import JobKey

SCRATCH, SCRATCH_PATH = "tmp", "/tmp"
"""Also the home folder. Ray's sockets are in /tmp/ray: the driver and Ray share it."""
SHARED_MEMORY, SHARED_MEMORY_PATH = "shared-memory", "/dev/shm"
RUNS = "storage"
"""The volume of `spec.storage`."""


def volumes(storage: Storage, shared_memory: str | None) -> list[dict[str, Any]]:
    """Volumes of a pod; `shared_memory`: how much there is, None for as much as Kubernetes gives."""
    shared: dict[str, Any] = {"medium": "Memory"}
    if shared_memory is not None:
        shared["sizeLimit"] = shared_memory
    return [
        {"name": SCRATCH, "emptyDir": {}},
        {"name": SHARED_MEMORY, "emptyDir": shared},
        # Without a volume the run is lost with the pod; the schema allows it for trying out.
        {"name": RUNS, **(storage.volume or {"emptyDir": {}})},
    ]


def mounts(storage: Storage) -> list[dict[str, Any]]:
    """Mounts of a container."""
    return [
        {"name": SCRATCH, "mountPath": SCRATCH_PATH},
        {"name": SHARED_MEMORY, "mountPath": SHARED_MEMORY_PATH},
        {"name": RUNS, "mountPath": storage.mount_path},
    ]


def run_folder(key: JobKey, storage: Storage) -> str:
    """The job's own folder, as its pods see it."""
    return f"{storage.mount_path.rstrip('/')}/{path_in_volume(key.namespace, key.name)}"
