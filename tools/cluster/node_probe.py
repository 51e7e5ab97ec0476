"""Whether this machine can be a node: looked at, never tried with the product."""

import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from tools.cluster.cgroups import ROOT as CONTROL_GROUPS
from tools.cluster.packages import SYSTEM_PATH, missing_packages

PROBE_SECONDS = 120


def why_no_node() -> str | None:
    """Why pods cannot run on this machine, in words; None if they can."""
    if platform.system() != "Linux":
        return f"a node needs Linux, and this is {platform.system()}"
    if os.geteuid() != 0:
        return "a node needs root"
    if not os.access(CONTROL_GROUPS, os.W_OK):
        return f"a node needs control groups that can be changed: {CONTROL_GROUPS} cannot"
    missing = missing_packages()
    if missing and not shutil.which("apt-get", path=SYSTEM_PATH):
        return f"a node needs what Debian has in {' '.join(missing)}, and there is no apt-get"
    return _why_no_namespaces()


def _why_no_namespaces() -> str | None:
    """Makes namespaces and an overlay in them, as a container has."""
    with tempfile.TemporaryDirectory(prefix="rljob-probe-") as name:
        folder = Path(name)
        for part in ("lower", "upper", "work", "root"):
            (folder / part).mkdir()
        layers = f"lowerdir={folder}/lower,upperdir={folder}/upper,workdir={folder}/work"
        overlay = ["mount", "-t", "overlay", "overlay", "-o", layers, f"{folder}/root"]
        command = ["unshare", "--mount", "--net", "--pid", "--fork", *overlay]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"a node needs namespaces of its own: {error}"
    if done.returncode:
        return f"a node needs namespaces of its own and overlay file systems: {done.stderr.strip()}"
    return None
