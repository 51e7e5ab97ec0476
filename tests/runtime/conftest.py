"""What several runtime tests start: a Ray of their own, addresses, and queues."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rljob_runtime.net.auth import ClientKeys, Endpoint, new_keys
from rljob_runtime.queue.broker import Broker
from rljob_runtime.queue.server import QueueServer
from tests.support.runtime.queue_site import sites
from tests.support.runtime.rank_processes import RankProcesses
from tests.support.scheduling import Together, unit_of_runtime


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """How several workers (`-n`) share the tests."""
    return Together(config, log, unit_of_runtime)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test of this tier has five minutes where it says nothing else: it starts processes that import torch
    or Ray, which takes each of them more than a minute on a busy machine."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="module")
def cluster():
    """A local Ray whose processes find what this one finds, and start with their packages imported."""
    import ray

    from rljob_runtime.site.lean_ray import lean_start
    from tests.support.runtime.prepared import prepared_workers
    from tests.support.runtime.ray_pods import slow_nodes

    with prepared_workers():
        with slow_nodes(), lean_start():
            ray.init(
                address="local",
                num_cpus=2,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
                object_store_memory=80 * 2**20,
                runtime_env={"env_vars": {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}},
            )
        yield
        ray.shutdown()


@pytest.fixture(scope="module")
def ranks(request: pytest.FixtureRequest) -> Iterator[RankProcesses]:
    """Processes for trainer ranks, as many as the module's `RANKS`; they start once, for all its tests."""
    started = RankProcesses(request.module.RANKS)
    yield started
    started.close()


@pytest.fixture(params=["tcp", "ipc"])
def address(request, tmp_path):
    """Where to listen, by each transport."""
    return f"ipc://{tmp_path}/private/server" if request.param == "ipc" else "tcp://127.0.0.1:0"


@pytest.fixture
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Endpoint, ClientKeys]]:
    """A queue of this process that trainer ranks in other processes take from."""
    folder = tmp_path_factory.mktemp("q")
    folder.chmod(0o700)
    server_keys, client_keys = new_keys()
    server = QueueServer(Broker(1000, 30.0), f"ipc://{folder}/queue", server_keys)
    server.start()
    yield server.endpoint, client_keys
    server.stop()


@pytest.fixture
def make_site():
    """Makes queues, and stops them in the end."""
    with sites() as make:
        yield make
