"""What the operator tells the driver through its environment."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rljob_runtime.cluster.own_job import Identity

TERMINATION_LOG = "/dev/termination-log"
"""Kubernetes' default: what a container leaves there becomes its termination message."""


class SettingsError(ValueError):
    """The environment is not that of a driver's container; the message says what is missing."""


@dataclass(frozen=True)
class Settings:
    """The environment of a driver's container; each field stands for one variable."""

    identity: Identity
    """RLJOB_NAMESPACE and RLJOB_NAME: the RLJob to run."""
    attempt: int
    """RLJOB_ATTEMPT: which attempt this is, from 1."""
    run_folder: Path
    """RLJOB_RUN_FOLDER: where the run is kept; made if need be."""
    key_file: Path
    """RLJOB_KEY_FILE: the job's key, in each of its pods at the same place (`net/keys.py`)."""
    reward_host: Path | None
    """RLJOB_REWARD_SOCKET: where the pod's container `rewards` starts the reward workers. Default: they are
    the driver's children, as under an operator that makes no such container."""
    alive_file: Path | None
    """RLJOB_ALIVE_FILE: the file that the container's liveness probe looks at. Default: none is kept."""
    pod_address: str | None
    """RLJOB_POD_IP: where other pods reach this one. Default: what Ray uses."""
    ray_address: str
    """RLJOB_RAY_ADDRESS: host:port of Ray's head. Default: 127.0.0.1:6379, in the same pod."""
    kubeconfig: Path | None
    """RLJOB_KUBECONFIG: a way to the API server other than the pod's service account."""
    termination_log: Path
    """RLJOB_TERMINATION_LOG: where the reason of a failure is left. Default: /dev/termination-log."""


def read_settings(environment: Mapping[str, str]) -> Settings:
    """The settings in an environment. Raises `SettingsError`."""
    missing = [
        name
        for name in ("RLJOB_NAME", "RLJOB_NAMESPACE", "RLJOB_ATTEMPT", "RLJOB_RUN_FOLDER", "RLJOB_KEY_FILE")
        if not environment.get(name)
    ]
    if missing:
        raise SettingsError(
            f"{', '.join(missing)} not set: `rljob drive` is what the operator starts in a pod; "
            "on one machine use `rljob run`"
        )
    attempt = environment["RLJOB_ATTEMPT"]
    if not attempt.isdecimal() or int(attempt) < 1:
        raise SettingsError(f"RLJOB_ATTEMPT must be a whole number from 1 (found {attempt!r})")
    ray_address = environment.get("RLJOB_RAY_ADDRESS") or "127.0.0.1:6379"
    if not ray_address.rpartition(":")[2].isdecimal():
        raise SettingsError(f"RLJOB_RAY_ADDRESS must be host:port (found {ray_address!r})")
    kubeconfig = environment.get("RLJOB_KUBECONFIG")
    reward_host, alive_file = environment.get("RLJOB_REWARD_SOCKET"), environment.get("RLJOB_ALIVE_FILE")
    return Settings(
        identity=Identity(environment["RLJOB_NAMESPACE"], environment["RLJOB_NAME"]),
        attempt=int(attempt),
        run_folder=Path(environment["RLJOB_RUN_FOLDER"]),
        key_file=Path(environment["RLJOB_KEY_FILE"]),
        reward_host=Path(reward_host) if reward_host else None,
        alive_file=Path(alive_file) if alive_file else None,
        pod_address=environment.get("RLJOB_POD_IP") or None,
        ray_address=ray_address,
        kubeconfig=Path(kubeconfig) if kubeconfig else None,
        termination_log=Path(environment.get("RLJOB_TERMINATION_LOG") or TERMINATION_LOG),
    )
