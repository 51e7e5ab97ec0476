"""The host's part in a step's time: Python's garbage collection, and which cores a rank runs on.

Guarantees: what cannot be found out leaves things as they are; cores are only taken away from those that the
process may use, and never all of them.
"""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SYSTEM = Path("/sys")


@contextmanager
def collection_paused(pause: bool) -> Iterator[None]:
    """Let Python not look for unused objects in the body; what has become unused there is looked for at its
    end. Does nothing without `pause`, and where collection is off already."""
    if not (pause and gc.isenabled()):
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        # Young objects alone: those that were there before the step, such as modules, are many.
        gc.collect(1)


def bind_to_node(pci_address: str | None, system: Path = _SYSTEM) -> str:
    """Keep this process on the cores of the NUMA node that the device at `pci_address` ("0000:1b:00.0") is
    attached to; threads that are already running keep theirs. What was done, in words for the log."""
    if pci_address is None:
        return "all cores: where the device is attached is not known"
    allowed = os.sched_getaffinity(0)
    node = _node_of(pci_address, system)
    if node is None:
        return f"all cores: the NUMA node of {pci_address} is not known"
    cores = node_cores(node, system) & allowed
    if not cores:
        return f"all cores: none of NUMA node {node} may be used"
    os.sched_setaffinity(0, cores)
    return f"{len(cores)} of {len(allowed)} cores, those of NUMA node {node}"


def node_cores(node: int, system: Path = _SYSTEM) -> set[int]:
    """The cores of a NUMA node; none where they are not known."""
    try:
        text = (system / f"devices/system/node/node{node}/cpulist").read_text()
    except OSError:
        return set()
    return parse_cores(text)


def parse_cores(text: str) -> set[int]:
    """The cores in a list as Linux writes it: "0-3,8,10-11"."""
    cores: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores |= set(range(int(first), int(last or first) + 1))
    return cores


def _node_of(pci_address: str, system: Path) -> int | None:
    try:
        node = int((system / f"bus/pci/devices/{pci_address.lower()}/numa_node").read_text())
    except (OSError, ValueError):
        return None
    # -1: the machine has one node, or does not tell.
    return node if node >= 0 else None
