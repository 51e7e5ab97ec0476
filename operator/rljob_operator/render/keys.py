"""The Secret by which a job's pods authenticate each other.

Guarantees: made once for each RLJob and never written again; its values are in it alone, and in the files
that the kubelet makes of it in the job's own containers: not in the environment, arguments or any other
object.

Its name holds the RLJob's UID. One that exists is thus the job's own, and the operator need not be allowed to
read Secrets to know it.
"""

import base64
from collections.abc import Callable
from typing import Any

from rljob_operator.render.labels import object_labels, owner_references
from rljob_operator.render.names import JobKey

VOLUME, FOLDER = "keys", "/var/run/secrets/rljob.dev/keys"
RAY_TOKEN, WIRE_KEY = "ray-token", "wire-key"
"""The token by which Ray's processes know each other; the key from which those of the queue, the engines and
the weights are derived. Each 32 random bytes, as hexadecimal text."""
_NAMES = (RAY_TOKEN, WIRE_KEY)
_KEY_BYTES = 32


def key_secret(key: JobKey, random_bytes: Callable[[int], bytes] | None) -> dict[str, Any]:
    """The Secret, to be created. Without `random_bytes` it has no values: pods would wait for them for
    ever."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": key.key_secret,
            "namespace": key.namespace,
            "labels": object_labels(key),
            "ownerReferences": owner_references(key),
        },
        "type": "Opaque",
        # Nobody changes it, and kubelets do not watch immutable Secrets.
        "immutable": True,
    }
    if random_bytes is None:
        return secret
    return {**secret, "data": {name: _encoded(random_bytes(_KEY_BYTES)) for name in _NAMES}}


def key_volume(key: JobKey) -> dict[str, Any]:
    """The Secret as a volume of a pod. Both values are named: a pod without them does not start."""
    items = [{"key": name, "path": name} for name in _NAMES]
    return {"name": VOLUME, "secret": {"secretName": key.key_secret, "items": items}}


def key_mount() -> dict[str, Any]:
    """Where the values are files."""
    return {"name": VOLUME, "mountPath": FOLDER, "readOnly": True}


def ray_environment() -> dict[str, str]:
    """What makes Ray's processes, and those that connect to them, show and ask for the token."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": f"{FOLDER}/{RAY_TOKEN}"}


def runtime_environment() -> dict[str, str]:
    """Where the driver and what it starts elsewhere find the key."""
    return {"RLJOB_KEY_FILE": f"{FOLDER}/{WIRE_KEY}"}


def _encoded(value: bytes) -> str:
    """The value's hexadecimal text, as a Secret's data holds it."""
    return base64.b64encode(value.hex().encode()).decode()
