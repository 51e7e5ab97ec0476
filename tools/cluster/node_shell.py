"""Commands on a node that runs, from this process or another one, and the images that its pods can use."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.cluster.binaries import cache
from tools.cluster.packages import SYSTEM_PATH
from tools.cluster.processes import ProcessFailed

NAMESPACES = Path(__file__).parent / "namespaces.py"
STORE_VARIABLE = "RLJOB_CLUSTER_STORE"
IMPORT_SECONDS = 900.0


def image_store() -> Path:
    """The folder with the images of nodes: RLJOB_CLUSTER_STORE, else one beside the built programs."""
    return Path(os.environ.get(STORE_VARIABLE) or cache() / "node-store").absolute()


class NodeShell:
    """The node of the cluster whose folder is `folder`."""

    def __init__(self, folder: Path) -> None:
        self.pid_file = folder / "node.pid"

    @property
    def pid(self) -> int:
        """The pid of the node's process 1, as this machine numbers it. ProcessFailed if there is no node."""
        try:
            return int(self.pid_file.read_text())
        except FileNotFoundError:
            raise ProcessFailed(
                f"the cluster in {self.pid_file.parent} has no node: end it by `make cluster-down` first"
            ) from None

    def entering(self, command: Sequence[str]) -> list[str]:
        """The command that runs `command` in the node's namespaces."""
        return [sys.executable, "-I", "-S", str(NAMESPACES), "enter", str(self.pid), *command]

    def run(self, *command: str, seconds: float = 60.0) -> str:
        """The output of a command in the node's namespaces. ProcessFailed with what it said."""
        try:
            done = subprocess.run(
                self.entering(command),
                capture_output=True,
                text=True,
                timeout=seconds,
                env={"PATH": SYSTEM_PATH},
            )
        except subprocess.TimeoutExpired:
            raise ProcessFailed(f"`{' '.join(command)}` took more than {seconds:.0f} s") from None
        if done.returncode:
            raise ProcessFailed(f"`{' '.join(command)}` on the node failed: {done.stderr[-2000:]}")
        return done.stdout

    def ctr(self, *arguments: str, seconds: float = 60.0) -> str:
        """The output of containerd's client, of what Kubernetes has in it. ProcessFailed."""
        return self.run("ctr", "--namespace=k8s.io", *arguments, seconds=seconds)

    def images(self) -> list[str]:
        """Names of the images that pods can use."""
        return self.ctr("images", "ls", "-q").split()

    def drop_unnamed_images(self) -> None:
        """Removes images whose name another one got since: Kubernetes keeps a second name for each, its
        digest, by which a node would keep gigabytes. Containers that run keep what they need."""
        # Below a headline: name, type, digest, and more.
        rows = [line.split() for line in self.ctr("images", "ls").splitlines()[1:]]
        named = {row[2] for row in rows if not row[0].startswith("sha256:")}
        unnamed = [row[0] for row in rows if row[2] not in named]
        if unnamed:
            self.ctr("images", "rm", "--sync", *unnamed, seconds=IMPORT_SECONDS)

    def load(self, archive: Path, name: str) -> bool:
        """Makes an image of an OCI or docker archive usable by pods, as `name`; whether it was not there yet.

        An archive counts as there that has the path, size and time of the one loaded last under this name.
        ProcessFailed.
        """
        found = archive.stat()
        made_from = f"{archive} {found.st_size} {found.st_mtime_ns}"
        note = image_store() / "loaded" / name.replace("/", "_")
        if note.exists() and note.read_text() == made_from and name in self.images():
            return False
        # The note comes back only after the import: one that is cut short is made again.
        note.unlink(missing_ok=True)
        self.ctr("images", "import", str(archive), seconds=IMPORT_SECONDS)
        if name not in self.images():
            raise ProcessFailed(f"{archive} holds no image {name}; there are {', '.join(self.images())}")
        note.parent.mkdir(exist_ok=True)
        note.write_text(made_from)
        return True
