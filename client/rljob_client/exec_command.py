"""Runs a kubeconfig's credential command.

Where this process has a terminal, the command has it too, so that it can ask somebody to log in.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rljob_client.exec_config import ExecConfig

_STANDARD_INPUT = 0
_EXTENSION = "client.authentication.k8s.io/exec"
"""Name of the cluster's extension that is meant for the command."""


def run_command(config: ExecConfig, folder: Path, cluster: Mapping[str, Any]) -> bytes:
    """What the command prints. `folder`: that of the kubeconfig; `cluster`: as the kubeconfig has it. Raises
    `OSError` where it cannot be run, and `ValueError` where it fails."""
    interactive = config.interactive and os.isatty(_STANDARD_INPUT)
    asked = json.dumps(_asked(config, cluster, interactive), default=str)
    with subprocess.Popen(
        config.words,
        stdin=None if interactive else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=None if interactive else subprocess.PIPE,
        cwd=folder,
        env={**os.environ, **config.environment, "KUBERNETES_EXEC_INFO": asked},
    ) as process:
        printed, said = process.communicate()
    if process.returncode:
        raise ValueError(f"it ended with exit code {process.returncode}{_told(said)}")
    return printed


def _asked(config: ExecConfig, cluster: Mapping[str, Any], interactive: bool) -> dict[str, Any]:
    """The ExecCredential that tells the command what is wanted."""
    wanted: dict[str, Any] = {"interactive": interactive}
    if config.tells_cluster:
        wanted["cluster"] = dict(cluster)
        for extension in cluster.get("extensions") or ():
            if isinstance(extension, Mapping) and extension.get("name") == _EXTENSION:
                wanted["cluster"]["config"] = extension.get("extension")
    return {"apiVersion": config.api_version, "kind": "ExecCredential", "spec": wanted}


def _told(said: bytes | None) -> str:
    """The command's own words; none where they went to a terminal."""
    words = (said or b"").decode(errors="replace").strip()
    return f": {words}" if words else ""
