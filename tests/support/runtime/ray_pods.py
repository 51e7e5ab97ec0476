"""A real Ray cluster on this machine whose nodes stand for a job's pods: each can come, and be killed."""

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import psutil
from ray._private import services
from ray.cluster_utils import Cluster

from rljob_runtime.site.lean_ray import lean_start

_ATTEMPTS = 3
_START_SECONDS = 120.0
_TOO_SLOW = ("timed out", "may not have started", "failed to start gcs", "failed to connect to gcs")
"""Words of Ray's errors where a process of a node did not come up in the time that Ray gives it."""
_OBJECT_STORE_BYTES = 80 * 2**20
"""Ray takes 75 MiB at least, and by default 30 % of the machine's memory for each node."""
_QUIET = {"include_log_monitor": False}
"""Nobody reads what a node's log monitor sends: drivers do not ask for it."""
RESOURCES = {"trainer": "trainer", "fast": "fast_rollout", "heavy": "heavy_rollout"}


@contextmanager
def slow_nodes() -> Iterator[None]:
    """While this runs, a node has `_START_SECONDS` to tell Ray's head that it is there. Ray itself gives it
    30 s, which no setting changes: on a busy machine several nodes that start at once may all need more."""
    ask = services.get_node

    def ask_patiently(*arguments: Any, **more: Any) -> Any:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                return ask(*arguments, **more)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.5)  # a node gives no event to who starts it

    services.get_node = ask_patiently
    try:
        yield
    finally:
        services.get_node = ask


def _patiently(start: Callable[[], Any]) -> Any:
    """Start a Ray node. What Ray gives its processes less time for, such as their ports, is begun anew."""
    for attempt in range(1, _ATTEMPTS + 1):
        # What a failed start leaves running has no name but this: it is a child that was not there before.
        before = set(psutil.Process().children(recursive=True))
        try:
            with slow_nodes(), lean_start():
                return start()
        except Exception as error:
            for process in set(psutil.Process().children(recursive=True)) - before:
                process.kill()
            slow = any(words in str(error).lower() for words in _TOO_SLOW)
            if not slow or attempt == _ATTEMPTS:
                raise
    raise AssertionError("unreachable")


class RayPods:
    """The head, and one Ray node for each pod; a context manager. This process itself does not connect."""

    def __init__(self) -> None:
        # Ray's workers give way to everything (nice 15): beside other tests' clusters they would not start.
        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
        head |= {"no_monitor": True} | _QUIET
        self._cluster: Cluster = _patiently(lambda: Cluster(initialize_head=True, head_node_args=head))
        self._nodes: dict[str, Any] = {}
        self._numbers = itertools.count()

    @property
    def address(self) -> str:
        """host:port of the head."""
        return str(self._cluster.address)

    @property
    def logs(self) -> str:
        """Folder of what Ray's processes log."""
        return str(self._cluster.head_node.get_logs_dir_path())

    def add(self, pool: str) -> str:
        """A new pod of a pool ("trainer", "fast", "heavy"); its name."""
        name = f"{pool}-pod-{next(self._numbers)}"
        settings = {"resources": {RESOURCES[pool]: 1}, "env_vars": {"RLJOB_POD": name}}
        self._nodes[name] = _patiently(
            lambda: self._cluster.add_node(
                wait=False, num_cpus=1, object_store_memory=_OBJECT_STORE_BYTES, **settings, **_QUIET
            )
        )
        return name

    def remove(self, name: str) -> None:
        """Kill a pod with all its processes."""
        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)

    def pods(self, pool: str) -> list[str]:
        """The pods of a pool."""
        return [name for name in self._nodes if name.startswith(f"{pool}-")]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cluster.shutdown()
