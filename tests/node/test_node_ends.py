"""What a node leaves behind when the process that holds its cluster is killed, and that two nodes may run."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools.cluster import Cluster
from tools.cluster.cgroups import ROOT as CONTROL_GROUPS
from tools.cluster.node_shell import STORE_VARIABLE, NodeShell
from tools.cluster.pause import IMAGE

pytestmark = pytest.mark.timeout(600, func_only=True)

ROOT = Path(__file__).parents[2]
END_SECONDS = 60.0
POD = f"""
apiVersion: v1
kind: Pod
metadata: {{name: quiet}}
spec:
  containers: [{{name: quiet, image: "{IMAGE}", imagePullPolicy: Never}}]
  volumes: [{{name: memory, emptyDir: {{medium: Memory}}}}]
"""


def processes_in(namespace: int) -> list[int]:
    """Processes of a PID namespace."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "ns" / "pid").stat().st_ino == namespace:
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):  # it ended, or is the machine's own
            continue
    return found


def groups_named(name: str) -> list[str]:
    """Control groups of a name, while those of other pods come and go."""
    # It leaves out a folder that goes meanwhile, which `glob` fails at.
    return [path for path, folders, _ in os.walk(CONTROL_GROUPS) if name in folders]


@pytest.fixture
def by_hand(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """`python -m tools.cluster COMMAND ...` for a cluster in tmp_path, which ends with the test."""
    environment = {**os.environ, STORE_VARIABLE: str(tmp_path / "store")}

    def call(command: str, *arguments: str) -> None:
        words = [sys.executable, "-m", "tools.cluster", command, f"--folder={tmp_path / 'cluster'}"]
        subprocess.run([*words, *arguments], cwd=ROOT, env=environment, check=True, timeout=360)

    yield call
    call("down")


def test_a_second_node_runs_beside_the_first_and_is_gone_when_its_holder_is_killed(
    cluster: Cluster, by_hand: Callable[..., None], tmp_path: Path
) -> None:
    folder = tmp_path / "cluster"

    by_hand("up", "--node")
    kubectl = [str(folder / "bin" / "kubectl"), f"--kubeconfig={folder / 'kubeconfig'}"]
    subprocess.run([*kubectl, "apply", "-f", "-"], input=POD.encode(), check=True, timeout=60)
    waiting = ["wait", "--for=condition=Ready", "pod/quiet", "--timeout=120s"]
    subprocess.run([*kubectl, *waiting], check=True, timeout=180)

    namespace = os.stat(f"/proc/{NodeShell(folder).pid}/ns/pid").st_ino
    # The pod's containers are in PID namespaces below this one and go with it.
    assert len(processes_in(namespace)) >= 5
    link = json.loads((folder / "kubelet.yaml").read_text())["cgroupRoot"].removeprefix("/")
    assert Path("/sys/class/net", link).exists() and groups_named(link)

    os.kill(json.loads((folder / "holder.json").read_text())["pid"], signal.SIGKILL)
    deadline = time.monotonic() + END_SECONDS
    while processes_in(namespace) or Path("/sys/class/net", link).exists():
        assert time.monotonic() < deadline, f"processes {processes_in(namespace)} of a killed node run on"
        time.sleep(0.1)
    assert str(tmp_path) not in Path("/proc/mounts").read_text()

    by_hand("down")
    assert not folder.exists()
    assert not groups_named(link)
    assert cluster.kubectl("get", "nodes", "-o", "name") == "node/rljob-node\n"
