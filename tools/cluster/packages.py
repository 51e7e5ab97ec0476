"""The machine's own programs that a node needs, and the packages of Debian and Ubuntu that have them."""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from tools.cluster.binaries import CannotBuild

CNI_FOLDER = Path("/usr/lib/cni")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NODE_PACKAGES: Mapping[str, str] = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "mount": "mount",
    str(CNI_FOLDER / "bridge"): "containernetworking-plugins",
    str(CNI_FOLDER / "portmap"): "containernetworking-plugins",
}
"""A program, by name on PATH or by path, and the package that has it."""
INSTALL_SECONDS = 600.0


def ensure_packages(needed: Mapping[str, str] = NODE_PACKAGES, say: Callable[[str], None] = print) -> None:
    """Installs by apt-get what is missing. CannotBuild, with what to install, where that cannot be done."""
    missing = missing_packages(needed)
    if not missing:
        return
    names = " ".join(missing)
    if not shutil.which("apt-get", path=SYSTEM_PATH):
        raise CannotBuild(
            f"this machine lacks {names} (names of Debian packages) and has no apt-get: install them"
        )
    if os.geteuid() != 0:
        raise CannotBuild(f"this machine lacks {names}. As root: apt-get install {names}")
    say(f"installing the Debian packages {names}")
    _apt("update")
    _apt("install", "--yes", "--no-install-recommends", *missing)
    if still := missing_packages(needed):
        raise CannotBuild(f"apt-get installed {names}, and still there is no program of {' '.join(still)}")


def missing_packages(needed: Mapping[str, str] = NODE_PACKAGES) -> list[str]:
    """The packages of those programs that are not there."""
    return sorted({name for program, name in needed.items() if not shutil.which(program, path=SYSTEM_PATH)})


def _apt(*arguments: str) -> None:
    # Another apt-get, such as the machine's own updates, is waited for; the default is to fail at once.
    command = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300", *arguments]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_SECONDS, env=environment
        )
    except subprocess.TimeoutExpired:
        raise CannotBuild(f"`{' '.join(command)}` took more than {INSTALL_SECONDS:.0f} s") from None
    if done.returncode:
        last = "\n".join((done.stderr or done.stdout).splitlines()[-10:])
        raise CannotBuild(f"`{' '.join(command)}` failed:\n{last}")
