"""The liveness probe of the driver's container.

Guarantees: it ends a driver whose event loop has stood still for half an hour, as one that was stopped or
waits for a lock does for ever, and no driver that waits for a slow step, for pods or for the API server; one
of a release that keeps no such file is left alone.
"""

from typing import Any

from rljob_operator.render.storage import SCRATCH_PATH

FILE = f"{SCRATCH_PATH}/rljob-alive"
"""The driver touches it every 10 s (`rljob_runtime/cluster/alive.py`)."""
_OLDEST_SECONDS = 1200
_PERIOD_SECONDS, _FAILURES = 60, 10


def environment() -> dict[str, str]:
    """What tells the driver of the file."""
    return {"RLJOB_ALIVE_FILE": FILE}


def script(file: str = FILE) -> str:
    """Shell script that fails where the file is there and is old."""
    return (
        f"changed=$(stat -c %Y {file} 2> /dev/null) || exit 0; "
        f"[ $(($(date +%s) - changed)) -lt {_OLDEST_SECONDS} ]"
    )


def probe() -> dict[str, Any]:
    """The probe. The container does not start again: its end is that of the attempt, by exit code 137."""
    return {
        "exec": {"command": ["/bin/bash", "-c", script()]},
        # On a node that is slow a look may take long, and looks that fail for that are not to add up soon.
        "timeoutSeconds": 30,
        "periodSeconds": _PERIOD_SECONDS,
        "failureThreshold": _FAILURES,
        # Not those of the pod, in which a driver that lives writes a checkpoint.
        "terminationGracePeriodSeconds": 30,
    }
