"""Pod templates of the head and of the workers.

Guarantees: what the job's own templates say is merged last; Ray's container is the first; the driver has
Ray's image; containers that a template adds are as restricted as ours unless it says otherwise.
"""

from collections.abc import Mapping
from typing import Any

from rljob_api import Spec
from rljob_api.kubernetes import Resources
from rljob_api.pools import PodShape
from rljob_api.pools import Pool as PoolSpec
from rljob_operator.plan.observed import Pool
from rljob_operator.render import access, alive, rewards, storage
from rljob_operator.render.accelerators import accelerator, device_resource, devices
from rljob_operator.render.keys import key_mount, key_volume, ray_environment, runtime_environment
from rljob_operator.render.labels import pod_labels
from rljob_operator.render.merge import Template, merge
from rljob_operator.render.names import (
    DRIVER_CONTAINER,
    HEAD_CONTAINER,
    REWARDS_CONTAINER,
    WORKER_CONTAINER,
    JobKey,
)
from rljob_operator.render.resources import (
    Defaults,
    container_resources,
    driver_defaults,
    head_defaults,
    rewards_defaults,
    worker_defaults,
)
from rljob_operator.render.security import container_security, own_container_security, pod_security

DRIVER_COMMAND = ("rljob", "drive")
_SHORTEST_GRACE_SECONDS = 30
"""Kubernetes' default."""
_TRAINER_DRAIN_SECONDS = 30
"""How long the ranks of a trainer pod that is deleted may go on: a job that is deleted with all its pods has
that long for the driver's last checkpoint."""
_RAY_ENV = {
    "RAY_USAGE_STATS_ENABLED": "0",
    **ray_environment(),
    # Actors that ask Ray for no device keep the variables that say which they may see.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_LOGS = {"RAY_LOG_TO_STDERR": "1", "RAY_BACKEND_LOG_LEVEL": "warning", "RAY_LOGGER_LEVEL": "warning"}
"""What actors print is the container's log, and not a file in the pod; of Ray itself its warnings."""
_STARTS = "RAY_worker_maximum_startup_concurrency"
"""How many processes of actors a Ray node starts at a time. Without it: as many as it has CPUs, one at least,
and our nodes offer no CPU."""
_DRAIN = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
"""How long a Ray that is told to end waits for its actors, in seconds."""


def head_template(key: JobKey, spec: Spec, attempt: int) -> Template:
    """The pod of Ray's head, the driver and the reward function.

    KubeRay gives Ray's container probes of its own. The driver's exit code says how it ended.
    """
    head = spec.pools.head
    hidden, has_devices = accelerator(spec).hidden(), device_resource(spec) is not None
    ray = _container(spec, HEAD_CONTAINER, _env({**_RAY_ENV, **_LOGS, _DRAIN: "0"}, hidden=hidden))
    ray["resources"] = container_resources(head.resources, head_defaults(has_devices), {})
    ray["lifecycle"] = {"preStop": _until_driven(own=True)}
    driver = _container(spec, DRIVER_CONTAINER, _driver_env(key, spec, attempt, hidden))
    driver["command"] = list(DRIVER_COMMAND)
    driver["livenessProbe"] = alive.probe()
    # Defaults beside what a template says would be limits below its requests, or requests above its limits.
    driver["resources"] = _unless_said(driver_defaults(has_devices), head.template, DRIVER_CONTAINER)
    driver["volumeMounts"] += [access.token_mount(), rewards.driver_mount()]
    scores = _unless_said(rewards_defaults(has_devices), head.template, REWARDS_CONTAINER)
    waits = _until_driven(own=rewards.user(spec) is None)
    scorer = rewards.container(spec, _env({}, hidden=hidden), scores, waits)
    # KubeRay takes the first container for Ray's, whatever its name.
    pod = _pod(key, spec, head, [ray, driver, scorer])
    pod["volumes"] += [access.token_volume(), *rewards.volumes()]
    pod |= {
        "serviceAccountName": key.driver_account,
        # Ray's client finds the Ray of its machine by looking at the processes.
        "shareProcessNamespace": True,
        "terminationGracePeriodSeconds": max(_SHORTEST_GRACE_SECONDS, spec.run_policy.suspend_grace_seconds),
    }
    ours = {"metadata": {"labels": pod_labels(key, attempt, "head")}, "spec": pod}
    merged = merge(_restrict_others(ours, head.template), head.template)
    return _with_one_image(merged)


def worker_template(key: JobKey, spec: Spec, attempt: int, name: Pool, pool: PoolSpec) -> Template:
    """A pod of one of the worker pools. A rollout pod that is to go was drained by the runtime, and ends at
    once."""
    drain = _TRAINER_DRAIN_SECONDS if name == "trainer" else 0
    environment = {**_RAY_ENV, **_LOGS, _DRAIN: str(drain)}
    if name == "trainer":
        environment[_STARTS] = str(pool.accelerators_per_worker)
    ray = _container(spec, WORKER_CONTAINER, _env(environment))
    held = devices(spec, pool.accelerators_per_worker)
    ray["resources"] = container_resources(pool.resources, worker_defaults(pool, bool(held)), held)
    pod = _pod(key, spec, pool, [ray])
    pod["terminationGracePeriodSeconds"] = _SHORTEST_GRACE_SECONDS + drain
    ours = {"metadata": {"labels": pod_labels(key, attempt, name)}, "spec": pod}
    with_devices = merge(ours, accelerator(spec).worker(spec))
    return merge(_restrict_others(with_devices, pool.template), pool.template)


def head_account(key: JobKey, spec: Spec) -> str:
    """ServiceAccount of the head pod: the driver's own, or the one that the head's template names."""
    pod = spec.pools.head.template.get("spec", {})
    return str(pod.get("serviceAccountName", key.driver_account) or "default")


def wait_script(argument: str, own: bool) -> str:
    """Shell script that ends when no process in the pod has `argument` as an argument of its own: of those of
    the script's user where `own`, else of those of all others.

    Run before the head's other containers are stopped: all containers of a pod are stopped at the same time,
    and the driver needs Ray, and the reward function, for its last checkpoint. The processes of reward
    functions, which are another user's, must not hold up the pod's end. The brackets keep grep from finding
    itself.
    """
    pattern, whose = f"[{argument[0]}]{argument[1:]}", "-O" if own else "! -O"
    runs = f"[ {whose} $each ] && grep -qszx '{pattern}' $each/cmdline && break"
    return f"while for each in /proc/[0-9]*; do {runs}; done; do sleep 0.5; done"


def _until_driven(own: bool) -> Template:
    """Handler that waits for the end of the driver; `own`: whether the container has the driver's user."""
    return {"exec": {"command": ["/bin/bash", "-c", wait_script(DRIVER_COMMAND[-1], own)]}}


def _pod(key: JobKey, spec: Spec, shape: PodShape, containers: list[Template]) -> Template:
    """What all pods of a job have; Ray's container is the first."""
    # What lies in /dev/shm counts towards the memory limit of the container.
    shared = shape.shared_memory or containers[0]["resources"].get("limits", {}).get("memory")
    return {
        "containers": containers,
        "volumes": [*storage.volumes(spec.storage, shared), key_volume(key)],
        # A finished driver must not start again, and KubeRay replaces lost workers by new pods.
        "restartPolicy": "Never",
        # Only the driver talks to the API server: its token is mounted into its container alone.
        "automountServiceAccountToken": False,
        # Variables of the namespace's services may overwrite those of a job, such as RAY_PORT.
        "enableServiceLinks": False,
        "securityContext": pod_security(),
    }


def _container(spec: Spec, name: str, env: list[dict[str, Any]]) -> Template:
    """What all containers of a job have."""
    image = {"image": spec.image} if spec.image is not None else {}
    return {
        "name": name,
        **image,
        "imagePullPolicy": spec.image_pull_policy,
        "workingDir": spec.storage.mount_path,
        "env": env,
        "volumeMounts": [*storage.mounts(spec.storage), key_mount()],
        "securityContext": own_container_security(),
        # A process that crashes writes no message: its last lines of log are told then.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _env(
    values: Mapping[str, str],
    fields: Mapping[str, str] | None = None,
    hidden: list[dict[str, str]] | None = None,
) -> list[dict[str, Any]]:
    """Environment of a container. A user without an entry in the image's /etc/passwd has no name and no home
    folder; caches are looked for by both."""
    common = {"HOME": storage.SCRATCH_PATH, "USER": "rljob"}
    from_pod = {"RLJOB_POD": "metadata.name", **(fields or {})}
    return [
        *({"name": name, "value": value} for name, value in {**common, **values}.items()),
        *(hidden or ()),
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in from_pod.items()),
    ]


def _driver_env(key: JobKey, spec: Spec, attempt: int, hidden: list[dict[str, str]]) -> list[dict[str, Any]]:
    values = {
        **_RAY_ENV,
        **runtime_environment(),
        **rewards.driver_environment(),
        **alive.environment(),
        "PYTHONUNBUFFERED": "1",
        "RLJOB_NAME": key.name,
        "RLJOB_ATTEMPT": str(attempt),
        "RLJOB_RUN_FOLDER": storage.run_folder(key, spec.storage),
    }
    return _env(values, {"RLJOB_NAMESPACE": "metadata.namespace", "RLJOB_POD_IP": "status.podIP"}, hidden)


def _restrict_others(ours: Template, template: Template) -> Template:
    """`ours` with a security context for each container that only the template has."""
    own = {container["name"] for container in ours["spec"]["containers"]}
    pod = dict(ours["spec"])
    for kind in ("containers", "initContainers"):
        others = [
            item["name"] for item in template.get("spec", {}).get(kind) or () if item["name"] not in own
        ]
        added = [{"name": name, "securityContext": container_security()} for name in others]
        if added:
            pod[kind] = [*pod.get(kind, []), *added]
    return {**ours, "spec": pod}


def _unless_said(defaults: Defaults, template: Template, name: str) -> Template:
    """`resources` of a container by defaults, without those of which a template says requests or limits."""
    return container_resources(Resources(), defaults.without(_resources_said(template, name)), {})


def _resources_said(template: Template, name: str) -> set[str]:
    """Resources of which a template says requests or limits for a container: ours must not contradict."""
    said: set[str] = set()
    for container in template.get("spec", {}).get("containers") or ():
        resources = container.get("resources")
        if container["name"] == name and isinstance(resources, dict):
            sides = (resources.get("requests"), resources.get("limits"))
            said.update(*(side for side in sides if isinstance(side, dict)))
    return said


def _with_one_image(template: Template) -> Template:
    """The template with Ray's image for the driver, unless it has one of its own, and with the driver's for
    the reward function, unless that has."""
    ray, *others = template["spec"]["containers"]
    image, found = ray.get("image"), [ray]
    for container in others:
        if container["name"] in (DRIVER_CONTAINER, REWARDS_CONTAINER):
            image = container.get("image", image)
            container = container if image is None else {**container, "image": image}
        found.append(container)
    return {**template, "spec": {**template["spec"], "containers": found}}
