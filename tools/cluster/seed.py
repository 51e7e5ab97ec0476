"""The data of an etcd in which KubeRay's resource definitions are established: what a cluster starts from.

A fresh API server needs about 5 CPU seconds to establish them, and to serve them half a second. So they are
applied once for each version, in a control plane of its own whose data are kept beside the programs.
"""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from tools.cluster.binaries import kept, manifests
from tools.cluster.control_plane import ControlPlane
from tools.cluster.custom_resources import apply_definitions
from tools.cluster.families import ETCD, KUBE, kuberay
from tools.cluster.ports import Ports

_COMPLETE = "established"
"""What of the definitions the data have, beside their names. An API server that starts with one that is
accepted, and not established yet, leaves it so."""


def seed(version: str, say: Callable[[str], None] = print) -> Path:
    """An etcd data folder with the definitions of this KubeRay, made now if it is not there; to be copied.

    CannotBuild, ProcessFailed, ApiError, TimeoutError.
    """
    definitions = manifests(kuberay(version), "crds", say)
    return kept(
        kuberay(version),
        "etcd-data",
        f"{KUBE.version} {ETCD.version} {_COMPLETE}",
        lambda target: _make(definitions, target, version, say),
    )


def _make(definitions: list[Path], target: Path, version: str, say: Callable[[str], None]) -> None:
    ports = Ports()
    with tempfile.TemporaryDirectory(prefix="rljob-cluster-seed-") as folder:
        plane = ControlPlane(Path(folder), ports)
        try:
            plane.start()
            apply_definitions(plane.api, definitions)
        finally:
            # etcd last: nobody writes to it any more when it closes its data.
            plane.apiserver.stop()
            plane.etcd.stop()
            ports.give_back()
        shutil.move(Path(folder) / "etcd", target)
    say(f"made etcd data with the definitions of KubeRay {version}")
