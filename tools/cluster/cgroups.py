"""Control groups for a node's pods, in version 1 and 2 of the kernel's interface.

A node has a group of its own in each hierarchy, named after its link to this machine.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
LINKS = Path("/sys/class/net")
PREFIX = "rljob"
CONTROLLERS = ("cpu", "cpuset", "memory", "pids", "hugetlb")
WEIGHTS = {"cpu.shares": 1024, "cpu.weight": 100}
"""Weight for each core of the machine, by file: the default of a group, in version 1 and in version 2."""
EMPTY_SECONDS = 60.0
"""For the kernel to take killed processes out of a group."""


def make(name: str) -> str:
    """Makes the group `name` everywhere, and returns its path as a kubelet names it."""
    for hierarchy in _hierarchies():
        group = hierarchy / name
        group.mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):  # in version 1 a new group may use none
            if (group / file).exists() and not (group / file).read_text().strip():
                (group / file).write_text((hierarchy / file).read_text())
        for file, one_core in WEIGHTS.items():  # else all pods together would weigh as much as one process
            if (group / file).exists():
                (group / file).write_text(str(one_core * (os.cpu_count() or 1)))
        if (hierarchy / "cgroup.controllers").exists() and hierarchy == ROOT:
            # In version 2 a group has the controllers that the group above hands down.
            there = (hierarchy / "cgroup.controllers").read_text().split()
            wanted = " ".join(f"+{each}" for each in CONTROLLERS if each in there)
            (hierarchy / "cgroup.subtree_control").write_text(wanted)
    return f"/{name}"


def remove(name: str) -> None:
    """Removes a group in which nothing runs, with all below it. TimeoutError if something still runs."""
    for hierarchy in _hierarchies():
        if (hierarchy / name).is_dir():
            _remove(hierarchy / name)


def remove_unused() -> None:
    """Removes the groups of nodes that were killed."""
    # A group's node runs as long as its link is there, which the kernel removes with the node's namespaces.
    names = {group.name for hierarchy in _hierarchies() for group in hierarchy.glob(f"{PREFIX}[0-9]*")}
    for name in names:
        if not (LINKS / name).exists():
            remove(name)


def _hierarchies() -> Iterator[Path]:
    """Version 2 has one; of version 1 each controller has its own."""
    if (ROOT / "cgroup.controllers").exists():
        yield ROOT
    else:
        yield from (each for each in sorted(ROOT.iterdir()) if each.is_dir() and not each.is_symlink())


def _remove(group: Path) -> None:
    """Removes a group with all below it, or what another process, such as a second `make cluster-down`, has
    left of it."""
    # From the lowest up: a group with groups in it cannot be removed. Its files go with it.
    try:
        inner = [each for each in group.iterdir() if each.is_dir()]
    except FileNotFoundError:
        return
    for each in inner:
        _remove(each)
    deadline = time.monotonic() + EMPTY_SECONDS
    while True:
        try:
            group.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            # Polled: a process that was killed leaves its group without an event.
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes still run in the control group {group}") from None
            time.sleep(0.05)
