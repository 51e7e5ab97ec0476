"""Containers as a restricted pod has them: user 1000, no capabilities, a root file system that is read-only.

`/tmp` and `/dev/shm` are writable, as a job's pods have them; there is no network. runc runs them, so that no
daemon is needed.
"""

import json
import subprocess
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

USER = 1000
_WRITABLE = {"/tmp": "4g", "/dev/shm": "1g"}


def run(
    root: Path,
    config: Mapping[str, Any],
    command: Sequence[str],
    *,
    shown: Mapping[str, Path] | None = None,
    writable: Sequence[str] = ("/tmp", "/dev/shm"),
    seconds: float = 120.0,
) -> "subprocess.CompletedProcess[str]":
    """The end of `command` in a container with the files of `root`; `config` is the image's configuration.

    `shown`: files and folders of this machine, by the path at which they are mounted read-only. Raises
    TimeoutExpired, after the container was ended.
    """
    name = f"rljob-image-{uuid.uuid4().hex[:12]}"
    with tempfile.TemporaryDirectory(prefix="rljob-container-") as bundle:
        settings = _settings(root, config["config"], command, shown or {}, writable)
        (Path(bundle) / "config.json").write_text(json.dumps(settings))
        try:
            return subprocess.run(
                ["runc", "run", "--bundle", bundle, name], capture_output=True, text=True, timeout=seconds
            )
        except subprocess.TimeoutExpired:
            subprocess.run(["runc", "delete", "--force", name], capture_output=True, timeout=30)
            raise


def _settings(
    root: Path,
    image: Mapping[str, Any],
    command: Sequence[str],
    shown: Mapping[str, Path],
    writable: Sequence[str],
) -> dict[str, Any]:
    """The container's config.json, of the OCI runtime specification 1.0."""
    nothing: dict[str, list[str]] = {
        kind: [] for kind in ("bounding", "effective", "permitted", "inheritable", "ambient")
    }
    memory = ["nosuid", "nodev", "mode=1777"]
    mounts = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
        {"destination": "/sys", "type": "bind", "source": "/sys", "options": ["rbind", "ro"]},
        *(
            {
                "destination": path,
                "type": "tmpfs",
                "source": "tmpfs",
                "options": [*memory, f"size={_WRITABLE[path]}"],
            }
            for path in writable
        ),
        *(
            {"destination": path, "type": "bind", "source": str(source), "options": ["rbind", "ro"]}
            for path, source in shown.items()
        ),
    ]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": USER, "gid": USER},
            "args": list(command),
            "env": image.get("Env", []),
            "cwd": image.get("WorkingDir") or "/",
            "capabilities": nothing,
            "noNewPrivileges": True,
        },
        "root": {"path": str(root), "readonly": True},
        "hostname": "container",
        "mounts": mounts,
        "linux": {
            "namespaces": [{"type": each} for each in ("pid", "ipc", "uts", "mount", "network")],
        },
    }
