"""What is wrong with a spec that the CRD's rules cannot say: free-form parts, and what they do together.

Guarantees: pure; every problem names its field and what to do; a spec without problems gives objects that the
API server and every supported KubeRay accept, as far as can be told without the cluster. KubeRay says in an
Event alone that it refuses a RayCluster, or that a pod cannot be created.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from rljob_api import Metadata, Spec
from rljob_api.errors import Path, Problem
from rljob_api.kubernetes import Resources
from rljob_api.pools import PodShape, Pool
from rljob_operator.render.accelerators import device_resource
from rljob_operator.render.images import OPTION
from rljob_operator.render.labels import PRIORITY_CLASS, QUEUE
from rljob_operator.render.names import DRIVER_CONTAINER, HEAD_CONTAINER, REWARDS_CONTAINER, WORKER_CONTAINER
from rljob_operator.render.quantities import amount
from rljob_operator.render.resources import (
    container_resources,
    head_defaults,
    overcommitted,
    worker_defaults,
)
from rljob_operator.render.template_refusals import (
    Names,
    image_problems,
    template_containers,
    template_problems,
)

_HUGE_PAGES = "hugepages-"
_TAKEN_PATHS = ("/tmp", "/dev", "/proc", "/sys", "/var/run", "/run")
"""Folders of the system or of other volumes of the pods."""
_PROGRAM_PATHS = (
    "/bin", "/sbin", "/lib", "/lib64", "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib64", "/opt/rljob",
)  # fmt: skip
"""Folders of the image without which, or without parts of which, nothing runs."""
_SYSTEM_PATHS = ("/etc", "/usr/local", "/home")
"""Folders of the image in which there may be mounts, but not over them."""
# RFC 1123 label; value of a label; RFC 1123 subdomain that fits into the value of a label.
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_NAME = re.compile(r"(?=.{1,63}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def metadata_refusals(metadata: Metadata) -> list[Problem]:
    """What is wrong with the metadata of a manifest; that of an object the API server has checked."""
    found = []
    if not _NAMESPACE.fullmatch(metadata.namespace):
        found.append(
            Problem(
                ("metadata", "namespace"),
                f"must be a name of at most 63 of a-z, 0-9 and -, without - at its ends "
                f"(found {metadata.namespace!r})",
            )
        )
    for key, value in metadata.labels.items():
        if key in (QUEUE, PRIORITY_CLASS) and not _NAME.fullmatch(value):
            form = "a name of at most 63 of a-z, 0-9, - and '.'"
        elif not _LABEL.fullmatch(value):
            form = "at most 63 of letters, digits, -, _ and '.'"
        else:
            continue
        found.append(
            Problem(
                ("metadata", "labels", key), f"must be {form}, without signs at its ends (found {value!r})"
            )
        )
    return found


def refusals(spec: Spec) -> list[Problem]:
    """Everything that is wrong, in the order of the fields; empty where the job can be rendered."""
    # The driver takes the image of Ray's container.
    imageless = [name for name, shape, own, _ in _pods(spec) if not _has_image(spec, shape, own[0])]
    missing = [_no_image(spec.accelerator, imageless)] if imageless else []
    return [*missing, *pod_refusals(spec), *_transport(spec), *_checkpoints(spec)]


def pod_refusals(spec: Spec) -> list[Problem]:
    """What no pod can be made of, in any cluster: where it is nothing, the job can still lack what only a
    cluster needs."""
    found = [*image_problems(spec.image, ("spec", "image")), *_storage(spec)]
    for name, shape, own, devices in _pods(spec):
        path: Path = ("spec", "pools", name)
        found += _resources(shape.resources, device_resource(spec), devices, (*path, "resources"))
        found += _shared_memory(shape, device_resource(spec) is not None, path)
        found += template_problems(shape.template, Names(own, spec.storage.mount_path), (*path, "template"))
    return found


def _pods(spec: Spec) -> list[tuple[str, PodShape, tuple[str, ...], int]]:
    """Name, shape, own containers (Ray's first) and number of accelerators of each kind of pod."""
    pools = spec.pools
    workers = {
        "trainer": pools.trainer,
        "fastRollout": pools.fast_rollout,
        "heavyRollout": pools.heavy_rollout,
    }
    return [
        ("head", pools.head, (HEAD_CONTAINER, DRIVER_CONTAINER, REWARDS_CONTAINER), 0),
        *((name, pool, (WORKER_CONTAINER,), pool.accelerators_per_worker) for name, pool in workers.items()),
    ]


def _has_image(spec: Spec, shape: PodShape, container: str) -> bool:
    named = [item for item in template_containers(shape.template) if item.get("name") == container]
    return bool(named[0].get("image", spec.image) if named else spec.image)


def _no_image(accelerator: str, pools: list[str]) -> Problem:
    where = ", ".join(f"pools.{name}" for name in pools)
    return Problem(
        ("spec", "image"),
        f"must be set to an image that holds the runtime (missing for {where}), or be given to the operator "
        f"for all jobs that name none, by {OPTION} {accelerator}=IMAGE; templates may name one for Ray's "
        "container, too",
    )


def _storage(spec: Spec) -> Iterator[Problem]:
    volume, mount = spec.storage.volume, spec.storage.mount_path
    at: Path = ("spec", "storage")
    if "name" in volume:
        yield Problem((*at, "volume", "name"), "must not be set: the volume's name is the operator's")
    sources = [key for key in volume if key != "name"]
    if volume and len(sources) != 1:
        said = " and ".join(sources) or "none"
        yield Problem((*at, "volume"), f"must be one volume source (found {said})")
    if posixpath.normpath(mount) != mount or mount.startswith("//"):
        yield Problem(
            (*at, "mountPath"),
            f"must be a plain absolute path without '.', '..' or doubled slashes (found {mount})",
        )
    else:
        overlap = [path for path in _TAKEN_PATHS if _inside(mount, path) or _inside(path, mount)]
        if overlap:
            yield Problem((*at, "mountPath"), f"must not overlap with {overlap[0]} (found {mount})")
        hidden = [path for path in _PROGRAM_PATHS if _inside(mount, path) or _inside(path, mount)]
        # A mount inside one of these hides nothing, such as /home/ray/runs.
        hidden += [path for path in _SYSTEM_PATHS if _inside(path, mount)]
        if hidden and not overlap:
            yield Problem(
                (*at, "mountPath"),
                f"must not hide {hidden[0]} of the image, or parts of it: name a folder such as /rljob "
                f"(found {mount})",
            )


def _transport(spec: Spec) -> Iterator[Problem]:
    if spec.training.async_.weight_sync.transport == "shm":
        yield Problem(
            ("spec", "training", "async", "weightSync", "transport"),
            "shm reaches one machine only, and pods share no memory: use auto in a cluster",
        )


_OF_ONE_POD = ("emptyDir", "ephemeral")
"""Kinds of volumes of which each pod gets one of its own."""


def _shared(volume: Mapping[str, Any]) -> bool:
    return any(kind not in (*_OF_ONE_POD, "name") for kind in volume)


def _checkpoints(spec: Spec) -> Iterator[Problem]:
    """Every trainer rank writes its part of a checkpoint: without a volume each pod has a folder of its own.

    An absolute `checkpoint.path` outside of the job's folder may be on a volume of the templates. Whether the
    pods share that, the runtime sees when it starts.
    """
    replicas, path = spec.pools.trainer.replicas, spec.training.checkpoint.path
    elsewhere = path is not None and path.startswith("/") and not _inside(path, spec.storage.mount_path)
    if replicas > 1 and not _shared(spec.storage.volume) and not elsewhere:
        yield Problem(
            ("spec", "storage", "volume"),
            f"must be set where pools.trainer.replicas is above 1 (found {replicas}): the trainer's pods "
            "write their parts of a checkpoint to one folder. Name a volume that all can mount, not emptyDir "
            "or ephemeral, of which each pod has its own; such as "
            "{persistentVolumeClaim: {claimName: NAME}} with access mode ReadWriteMany, or set "
            "pools.trainer.replicas to 1",
        )


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _shared_memory(shape: PodShape, has_devices: bool, at: Path) -> Iterator[Problem]:
    defaults = worker_defaults(shape, has_devices) if isinstance(shape, Pool) else head_defaults(has_devices)
    # With the defaults: a job that sets no limit has one, too.
    limit = container_resources(shape.resources, defaults, {}).get("limits", {}).get("memory")
    size = shape.shared_memory
    if size is not None and limit is not None and amount(size) > amount(limit):
        yield Problem(
            (*at, "sharedMemory"),
            f"must not be above the memory limit of {limit}, towards which it counts: set "
            f"resources.limits.memory (found {size})",
        )


def _resources(resources: Resources, device: str | None, devices: int, at: Path) -> Iterator[Problem]:
    why = "by acceleratorsPerWorker" if devices else "the head has no accelerators"
    for side, amounts in (("requests", resources.requests), ("limits", resources.limits)):
        for name, quantity in amounts.items():
            if name == device:
                if amount(quantity) != devices:
                    yield Problem(
                        (*at, side, name), f"must be {devices} ({why}), or be left out (found {quantity})"
                    )
            elif why_not := _indivisible(name, quantity):
                yield Problem((*at, side, name), f"{why_not} (found {quantity})")
            # Names without a domain are Kubernetes' own; the API server refuses those it does not know.
            elif "/" not in name and not overcommitted(name) and not name.startswith(_HUGE_PAGES):
                yield Problem(
                    (*at, side, name),
                    "is no resource of Kubernetes: write cpu, memory, ephemeral-storage, hugepages-SIZE, or "
                    "a device plugin's resource such as vendor.com/name",
                )
    for name in sorted(resources.requests.keys() & resources.limits.keys()):
        asked, allowed = resources.requests[name], resources.limits[name]
        if amount(asked) > amount(allowed):
            yield Problem(
                (*at, "requests", name), f"must not be above the limit of {allowed} (found {asked})"
            )
        # The API server would refuse the pods, of which an Event of KubeRay alone tells.
        elif not overcommitted(name) and amount(asked) != amount(allowed):
            yield Problem(
                (*at, "requests", name),
                f"must equal the limit of {allowed}, or be left out: no overcommitting (found {asked})",
            )


def _indivisible(name: str, quantity: str) -> str | None:
    """What the API server finds wrong with an amount in each pod, once KubeRay makes it."""
    if name.startswith(_HUGE_PAGES):
        size = _page_size(name)
        whole = size is not None and amount(quantity) % size == 0
        return None if whole else "must be a multiple of the page's size, as in its name"
    # Native ones with a domain, such as kubernetes.io/batch-cpu, have parts.
    if "/" not in name or "kubernetes.io/" in name or amount(quantity).denominator == 1:
        return None
    return "must be a whole number: Kubernetes gives no part of one"


def _page_size(name: str) -> Fraction | None:
    try:
        size = amount(name.removeprefix(_HUGE_PAGES))
    except (ValueError, ZeroDivisionError):
        return None
    return size if size > 0 else None
