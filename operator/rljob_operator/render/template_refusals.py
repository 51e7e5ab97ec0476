"""What a pod template of a job must not say, because the operator or KubeRay says it, or because it breaks
how Ray runs in the pod.

Guarantees: pure; a template without problems can be merged, and keeps what Ray and the driver need.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rljob_api.errors import Path, Problem
from rljob_operator.render import keys, rewards
from rljob_operator.render.access import TOKEN_VOLUME
from rljob_operator.render.names import DRIVER_CONTAINER, HEAD_CONTAINER, REWARDS_CONTAINER
from rljob_operator.render.storage import RUNS, SCRATCH, SCRATCH_PATH, SHARED_MEMORY, SHARED_MEMORY_PATH


@dataclass(frozen=True, slots=True)
class Names:
    """What the operator names in a pod."""

    containers: tuple[str, ...]
    """Its containers, Ray's first."""
    mount_path: str
    """Where the run folder's volume is mounted."""

    @property
    def head(self) -> bool:
        """Whether it is the head's pod."""
        return HEAD_CONTAINER in self.containers


_POD_FIELDS: dict[str, str] = {
    "restartPolicy": "it is Never: a finished driver must not start again, and lost workers get new pods",
    "hostNetwork": "two pods of one node would fight for Ray's ports",
    "hostPID": "Ray would find the processes of other pods",
    "ephemeralContainers": "Kubernetes adds them to running pods alone",
    "serviceAccount": "its name is serviceAccountName",
}
_HARMLESS: dict[str, tuple[Any, ...]] = {
    "restartPolicy": ("Never",),
    "hostNetwork": (None, False),
    "hostPID": (None, False),
}
_CONTAINER_FIELDS: dict[str, str] = {
    "command": "it is written by the operator and KubeRay; use initContainers to prepare a pod",
    "args": "they are written by the operator and KubeRay; use initContainers to prepare a pod",
    "workingDir": "it is storage.mountPath, which paths of the job are relative to",
}
_OWN_PREFIXES = {"rljob.dev/": "is the operator's", "ray.io/": "is KubeRay's"}
_CREATED_BY = "app.kubernetes.io/created-by"
"""KubeRay lets a template change it, and selects the pod of the head's Service by its own value."""
_SET_BY_OTHERS = {
    "RAY_REDIS_ADDRESS": "Ray's fault tolerance by Redis is not used: a lost head is a new attempt",
    "REDIS_USERNAME": "KubeRay refuses it",
    "RAY_enable_autoscaler_v2": "the operator scales the pools, Ray's autoscaler is off",
    "RAY_ADDRESS": "KubeRay sets it",
    "RAY_PORT": "KubeRay sets it",
    **dict.fromkeys(
        ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"),
        "the job has a token of its own, in all pods",
    ),
}
_NAMED_LISTS = ("containers", "volumes", "initContainers", "imagePullSecrets")
_OWN_LISTS = ("containers", "volumes")
"""Lists that hold something of ours: null would remove it."""
_OWN_VOLUMES = {
    RUNS: "say it in spec.storage.volume",
    TOKEN_VOLUME: "the driver's token is there",
    keys.VOLUME: "the job's keys are there",
    rewards.SOCKETS: "the driver reaches the reward function there",
    rewards.SCRATCH: "it is the reward function's /tmp",
}


def template_problems(template: Mapping[str, Any], names: Names, at: Path) -> Iterator[Problem]:
    """Everything that is wrong with a template."""
    for key in template:
        if key not in ("metadata", "spec"):
            yield Problem((*at, str(key)), "is no field of a pod template: it has metadata and spec")
    metadata, pod = template.get("metadata", {}), template.get("spec", {})
    if not isinstance(metadata, dict):
        yield Problem((*at, "metadata"), "must be a mapping")
    else:
        yield from _metadata(metadata, names, (*at, "metadata"))
    if not isinstance(pod, dict):
        yield Problem((*at, "spec"), "must be a mapping")
        return
    misshapen = list(_misshapen(pod, (*at, "spec")))
    yield from misshapen
    yield from _pod(pod, names, (*at, "spec"))
    # Containers without names cannot be looked up by them; those problems come first.
    if not misshapen:
        yield from _containers(pod, names, (*at, "spec"))


def template_containers(template: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The containers of a template, whatever else is wrong with it."""
    pod = template.get("spec")
    return _mappings(pod.get("containers")) if isinstance(pod, dict) else []


def image_problems(image: Any, at: Path) -> Iterator[Problem]:
    """What is wrong with an image's name, where there is one."""
    if isinstance(image, str) and any(character.isspace() for character in image):
        yield Problem(at, f"must be an image's name, which has no white space (found {image!r})")


def _metadata(metadata: Mapping[str, Any], names: Names, at: Path) -> Iterator[Problem]:
    for key, value in metadata.items():
        if key not in ("labels", "annotations"):
            yield Problem(
                (*at, str(key)), "must not be set: of a pod's metadata, labels and annotations are yours"
            )
        elif not isinstance(value, dict):
            yield Problem((*at, key), "must be a mapping")
        else:
            yield from _texts(value, (*at, key))
            for name in value:
                prefix = next((own for own in _OWN_PREFIXES if str(name).startswith(own)), None)
                if prefix is not None:
                    yield Problem((*at, key, str(name)), f"must not be set: {prefix} {_OWN_PREFIXES[prefix]}")
                elif (key, name) == ("labels", _CREATED_BY) and names.head:
                    yield Problem(
                        (*at, key, name), "must not be set: workers find the head by KubeRay's value of it"
                    )


def _texts(values: Any, at: Path) -> Iterator[Problem]:
    """Values of a mapping that must be strings to Kubernetes, and were written without quotes."""
    for name, value in values.items() if isinstance(values, dict) else ():
        if isinstance(value, (int, float)):
            yield Problem(
                (*at, str(name)), f"must be a string: put it in quotes (found {str(value).lower()})"
            )


def _misshapen(pod: Mapping[str, Any], at: Path) -> Iterator[Problem]:
    """Lists that cannot be merged by name."""
    for key in _NAMED_LISTS:
        items = pod.get(key)
        # A missing list is fine; null would remove what the operator puts there.
        if items is None and not (key in pod and key in _OWN_LISTS):
            continue
        if not isinstance(items, list):
            yield Problem((*at, key), "must be a list")
            continue
        seen: set[str] = set()
        for index, item in enumerate(items):
            name = item.get("name") if isinstance(item, dict) else None
            if not isinstance(name, str) or not name:
                yield Problem((*at, key, index), "must have a name: it is merged by it")
            elif name in seen:
                yield Problem((*at, key, index), f"{name} is there twice")
            else:
                seen.add(name)


def _pod(pod: Mapping[str, Any], names: Names, at: Path) -> Iterator[Problem]:
    for key, why in _POD_FIELDS.items():
        if key in pod and pod[key] not in _HARMLESS.get(key, (None,)):
            yield Problem((*at, key), f"must not be set: {why}")
    if not isinstance(pod.get("securityContext") or {}, dict):
        yield Problem((*at, "securityContext"), "must be a mapping")
    yield from _texts(pod.get("nodeSelector"), (*at, "nodeSelector"))
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(_mappings(pod.get(kind))):
            for place, variable in enumerate(_mappings(container.get("env"))):
                said = {"value": variable.get("value")}
                yield from _texts(said, (*at, kind, index, "env", place))
    if names.head and pod.get("shareProcessNamespace", True) is not True:
        yield Problem(
            (*at, "shareProcessNamespace"), "must not be changed: the driver finds Ray by its processes"
        )


def _containers(pod: Mapping[str, Any], names: Names, at: Path) -> Iterator[Problem]:
    for index, volume in enumerate(pod.get("volumes") or ()):
        if volume["name"] in _OWN_VOLUMES:
            yield Problem(
                (*at, "volumes", index), f"{volume['name']} must not be set: {_OWN_VOLUMES[volume['name']]}"
            )
    for index, container in enumerate(pod.get("initContainers") or ()):
        yield from image_problems(container.get("image"), (*at, "initContainers", index, "image"))
        if container["name"] in names.containers:
            yield Problem(
                (*at, "initContainers", index, "name"), f"{container['name']} is a container's name"
            )
    for index, container in enumerate(pod.get("containers") or ()):
        yield from image_problems(container.get("image"), (*at, "containers", index, "image"))
        if container["name"] in names.containers:
            yield from _own_container(container, names, (*at, "containers", index))
    if names.head:
        yield from _sockets(_mappings(pod.get("containers")), (*at, "containers"))


def _sockets(containers: list[Mapping[str, Any]], at: Path) -> Iterator[Problem]:
    """A mount over the folder of the reward function's sockets that keeps the driver from them: it would wait
    for them in vain."""
    found = {
        container["name"]: (mount.get("name"), (*at, index, "volumeMounts", place))
        for index, container in enumerate(containers)
        if container["name"] in (DRIVER_CONTAINER, REWARDS_CONTAINER)
        for place, mount in enumerate(_mappings(container.get("volumeMounts")))
        if _mounted_at(mount) == rewards.SOCKETS_PATH
    }
    volumes = {volume for volume, _ in found.values()}
    if len(found) == 1 or len(volumes) > 1:
        _, where = next(iter(found.values()))
        yield Problem(
            where,
            f"{rewards.SOCKETS_PATH} is where the driver reaches the reward function: {DRIVER_CONTAINER} and "
            f"{REWARDS_CONTAINER} must mount one volume there",
        )


def _own_container(container: Mapping[str, Any], names: Names, at: Path) -> Iterator[Problem]:
    """What a template must not say about Ray's container and the driver."""
    name = container["name"]
    ray = name == names.containers[0]
    for key, why in _CONTAINER_FIELDS.items():
        if key in container:
            yield Problem((*at, key), f"must not be set in {name}: {why}")
    resources = container.get("resources", {})
    said = not isinstance(resources, dict) or not resources.keys().isdisjoint(("requests", "limits"))
    if ray and said:
        pool = at[at.index("pools") + 1]
        yield Problem((*at, "resources"), f"must not be set in {name}: say it in pools.{pool}.resources")
    lifecycle = container.get("lifecycle", {})
    if ray and names.head and (not isinstance(lifecycle, dict) or "preStop" in lifecycle):
        yield Problem(
            (*at, "lifecycle"), f"must not change preStop of {name}: it waits for the driver's checkpoint"
        )
    for key in ("env", "volumeMounts"):
        if not isinstance(container.get(key, []), list):
            yield Problem((*at, key), "must be a list")
    yield from _environment(_mappings(container.get("env")), (*at, "env"))
    yield from _mounts(_mappings(container.get("volumeMounts")), names.mount_path, (*at, "volumeMounts"))


def _environment(variables: list[Mapping[str, Any]], at: Path) -> Iterator[Problem]:
    for index, variable in enumerate(variables):
        name = str(variable.get("name"))
        why = "RLJOB_ is the operator's" if name.startswith("RLJOB_") else _SET_BY_OTHERS.get(name)
        if why is not None:
            yield Problem((*at, index), f"{name} must not be set: {why}")


def _mounts(mounts: list[Mapping[str, Any]], runs: str, at: Path) -> Iterator[Problem]:
    shared = {SCRATCH_PATH: SCRATCH, f"{SCRATCH_PATH}/ray": SCRATCH, SHARED_MEMORY_PATH: SHARED_MEMORY}
    for index, mount in enumerate(mounts):
        path = _mounted_at(mount)
        if path == runs:
            yield Problem((*at, index), f"{path} is where spec.storage.volume is mounted")
        elif path == keys.FOLDER:
            yield Problem((*at, index), f"{path} is where the job's keys are mounted")
        elif path in shared:
            yield Problem(
                (*at, index),
                f"{path} must stay as it is, for containers share it; to change what is mounted there, give "
                f"template.spec.volumes an item named {shared[path]}",
            )


def _mounted_at(mount: Mapping[str, Any]) -> str:
    return str(mount.get("mountPath")).rstrip("/")


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    """The items of a list that are mappings; the API server refuses what is not."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
