"""Starts of Ray on one machine in less time: without what a job there has no use for, and without waits that
no argument of `ray.init` leaves out.

Guarantees: what is replaced here is Ray's own and may have other names in another release, and then Ray
starts as it does by itself.
"""

import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rljob_runtime.site import no_agent

_UNUSED = ("start_monitor", "start_log_monitor", "start_api_server")
"""Methods of Ray's node that start what a job on one machine has no use for: the autoscaler, what sends lines
of logs to the driver, and the dashboard's server. Each is a Python process, 2 s of a core together at the
start of every job."""
_AGENT_PORTS = ("METRICS_AGENT_PORT_NAME", "METRICS_EXPORT_PORT_NAME", "DASHBOARD_AGENT_LISTEN_PORT_NAME")
"""Ray's names for the files in which its dashboard agent says on which ports it is."""
_NOT_SERVED = -1
"""What the agent writes for a port where Ray is installed without the packages of the dashboard."""
_AGENT = "--dashboard_agent_command="
"""The raylet's flag for the program of the agent."""
_SEEN_SECONDS = 10.0
"""How long a node's registration is looked for often: to later ones a second more means little."""
_LOOK_SECONDS = 0.02
"""Between two looks. Ray tells a registration to nobody who starts a node."""


@contextmanager
def lean_start() -> Iterator[None]:
    """A Ray that is started meanwhile has none of the processes that a job does not use, and is seen as soon
    as it is there."""
    with _few_processes(), _no_agent(), _seen_soon():
        yield


@contextmanager
def replaced(owner: object, **attributes: Any) -> Iterator[None]:
    """Those of the attributes that the owner has have other values meanwhile."""
    kept = {name: getattr(owner, name) for name in attributes if hasattr(owner, name)}
    for name in kept:
        setattr(owner, name, attributes[name])
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(owner, name, value)


@contextmanager
def _few_processes() -> Iterator[None]:
    """Nothing of `_UNUSED` is started."""
    from ray._private.node import Node

    with replaced(Node, **dict.fromkeys(_UNUSED, lambda *_, **__: None)):
        yield


@contextmanager
def _no_agent() -> Iterator[None]:
    """The raylet has a bare process for its dashboard agent, and does not wait for it.

    The agent reports metrics to the dashboard, and looks at all processes for it every few seconds; it takes
    138 MB. The raylet does not register before the agent listens: that takes it 1 s for imports, on GPUs as
    long as `nvidia-smi`, and 3.4 s more where another Ray is on the machine, or has just ended, for all of
    them want the same port (52365) and try six times to get it. After 15 s the raylet gives up. It must have
    an agent, whose end ends it."""
    import ray._raylet as names
    from ray._private import services, utils
    from ray._private.node import Node

    ports = [getattr(names, name, None) for name in _AGENT_PORTS]
    persist = getattr(names, "persist_port", None)
    if persist is None or None in ports or not _can_wait_for_processes():
        yield
        return
    start_raylet, start_process = Node.start_raylet, services.start_ray_process
    stand_in = subprocess.list2cmdline([sys.executable, "-I", "-S", str(Path(no_agent.__file__))])

    def start_raylet_at_once(node: Any, *arguments: Any, **more: Any) -> None:
        for port in ports:
            persist(node.get_session_dir_path(), node.node_id, port, _NOT_SERVED)
        start_raylet(node, *arguments, **more)

    def start_with_stand_in(command: list[str], *arguments: Any, **more: Any) -> Any:
        command = [_AGENT + stand_in if each.startswith(_AGENT) else each for each in command]
        return start_process(command, *arguments, **more)

    with (
        replaced(Node, start_raylet=start_raylet_at_once),
        replaced(services, start_ray_process=start_with_stand_in),
        # Whether the agent could serve: to find out, Ray would import its packages here, 20 MB in 0.15 s.
        replaced(utils, get_dashboard_dependency_error=lambda: None),
    ):
        yield


def _can_wait_for_processes() -> bool:
    """Whether this kernel, or container, lets `no_agent` wait for the raylet's end."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


@contextmanager
def _seen_soon() -> Iterator[None]:
    """Whoever asks for a node that is about to register learns of it at once. Ray's own function looks once
    a second: of a node that needs 1.1 s it knows after 2."""
    from ray._private import services
    from ray.exceptions import RayError

    ask: Callable[..., Any] = services.get_node

    @functools.wraps(ask)
    def ask_often(gcs_address: str, node_id: str) -> Any:
        # What keeps Ray's head from answering is told by Ray's own function, which asks it next.
        with suppress(RayError):
            _wait_for(gcs_address, node_id)
        return ask(gcs_address, node_id)

    with replaced(services, get_node=ask_often):
        yield


def _wait_for(gcs_address: str, node_id: str) -> None:
    """Until the node has registered, or `_SEEN_SECONDS` are over."""
    from ray import NodeID
    from ray._private.services import GcsClient, GcsNodeInfo, GetAllNodeInfoRequest

    client = GcsClient(address=gcs_address)
    node = GetAllNodeInfoRequest.NodeSelector(node_id=NodeID.from_hex(node_id).binary())
    alive = GcsNodeInfo.GcsNodeState.ALIVE
    deadline = time.monotonic() + _SEEN_SECONDS
    while (left := deadline - time.monotonic()) > 0:
        if client.get_all_node_info(timeout=left, node_selectors=[node], state_filter=alive):
            return
        time.sleep(_LOOK_SECONDS)
