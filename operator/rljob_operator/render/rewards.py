"""The container of the head pod in which the reward function runs.

Guarantees: the reward function, which is the job's own code and scores what a model wrote, runs as another
user than the driver and has neither the driver's token nor the job's keys, nor a place where it could leave
something that the driver or Ray would run: of what it may write, the driver reads the socket alone.
"""

from itertools import count
from typing import Any

from rljob_api import Spec
from rljob_operator.render import security, storage
from rljob_operator.render.merge import Template
from rljob_operator.render.names import REWARDS_CONTAINER

USER = 1001
"""User and group of the reward function, or the next that is free where a template gives it to others; the
driver's is 1000 (`security.USER`)."""
SOCKETS, SOCKETS_PATH = "reward-sockets", "/var/run/rljob.dev/rewards"
"""The folder that the driver and this container share."""
SCRATCH = "reward-tmp"
# All that the job's own code may write in this container. A node whose disk is full evicts pods of others;
# with these limits it evicts the one that fills it, which counts as the job's own failure.
_SCRATCH_LIMIT, _SOCKETS_LIMIT = "16Gi", "16Mi"
COMMAND = "host-rewards"
_SOCKET = f"{SOCKETS_PATH}/host"
# An image of the release before has no such command, and its driver starts reward processes itself. A
# container that ended would make the pod one that is not ready.
_SCRIPT = (
    f"rljob {COMMAND} --help > /dev/null 2>&1 || exec sleep infinity; exec rljob {COMMAND} --socket {_SOCKET}"
)


def user(spec: Spec) -> int | None:
    """User and group of the container, which no other has that the template gives one; None: the driver's."""
    pod = spec.pools.head.template.get("spec", {})
    shared = (pod.get("securityContext") or {}).get("runAsUser", security.USER)
    # Where users are given by the namespace (OpenShift), a template removes ours: it has one for all.
    if shared is None:
        return None
    given = [each.get("securityContext") for each in pod.get("containers") or ()]
    taken = [shared, *(each.get("runAsUser") for each in given if isinstance(each, dict))]
    return next(free for free in count(USER) if free not in taken)


def container(spec: Spec, env: list[dict[str, Any]], resources: Template, pre_stop: Template) -> Template:
    """The container, without an image: it is the driver's. `pre_stop` keeps it until the driver has ended,
    for samples are scored until the last checkpoint."""
    other = user(spec)
    given = {} if other is None else {"runAsUser": other, "runAsGroup": other}
    return {
        "name": REWARDS_CONTAINER,
        "imagePullPolicy": spec.image_pull_policy,
        "workingDir": spec.storage.mount_path,
        "command": ["/bin/bash", "-c", _SCRIPT],
        "env": env,
        "resources": resources,
        "lifecycle": {"preStop": pre_stop},
        "volumeMounts": [
            {"name": SCRATCH, "mountPath": storage.SCRATCH_PATH},
            {"name": SOCKETS, "mountPath": SOCKETS_PATH},
            # Its code and data are read there; checkpoints and records are the driver's to write.
            {"name": storage.RUNS, "mountPath": spec.storage.mount_path, "readOnly": True},
        ],
        "securityContext": {**security.own_container_security(), **given},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def volumes() -> list[dict[str, Any]]:
    """Its volumes, besides that of the run folder."""
    bounded = {SCRATCH: _SCRATCH_LIMIT, SOCKETS: _SOCKETS_LIMIT}
    return [{"name": name, "emptyDir": {"sizeLimit": limit}} for name, limit in bounded.items()]


def driver_mount() -> dict[str, Any]:
    """Where the driver finds the socket."""
    return {"name": SOCKETS, "mountPath": SOCKETS_PATH}


def driver_environment() -> dict[str, str]:
    """What tells the driver to have its reward processes there."""
    return {"RLJOB_REWARD_SOCKET": _SOCKET}
