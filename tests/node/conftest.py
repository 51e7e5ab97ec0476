"""One real cluster for all tests here: a kubelet, real pods, the operator as its chart installs it.

What is missing is built once the tests are collected, so that no test's time limit holds for it. Where this
machine cannot be a node, a probe says why and every test here is skipped.
"""

import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.operator.node_jobs import NodeJob, claim, new_namespace
from tools.cluster import KUBERAY_VERSIONS, ApiError, CannotBuild, Cluster, ProcessFailed, prepare
from tools.cluster.node_probe import why_no_node
from tools.cluster.product import build_images, install

HERE = Path(__file__).parent
PROBLEM = pytest.StashKey[str]()
CANNOT = pytest.StashKey[str]()


def pytest_collection_finish(session: pytest.Session) -> None:
    config = session.config
    if config.option.collectonly or not any(HERE in each.path.parents for each in session.items):
        return
    if why := why_no_node():
        config.stash[CANNOT] = why
        return
    capture = config.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():
            prepare(KUBERAY_VERSIONS[:1], lambda line: print(line, flush=True), node=True)
            build_images(lambda line: print(line, flush=True))
    except (CannotBuild, ProcessFailed, ApiError, TimeoutError) as error:
        config.stash[PROBLEM] = str(error)


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with a real node and the operator."""
    if why := pytestconfig.stash.get(CANNOT, None):
        pytest.skip(why)
    if problem := pytestconfig.stash.get(PROBLEM, None):
        pytest.fail(problem, pytrace=False)
    with Cluster(nodes={}, node=True, audit=True) as started:
        capture = pytestconfig.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            install(started.folder, lambda line: print(line, flush=True))
        yield started


@pytest.fixture(autouse=True)
def whole(cluster: Cluster) -> Iterator[None]:
    """Fails a test in which a component of the cluster ended by itself; starts what the test stopped."""
    yield
    cluster.repair()


@pytest.fixture
def namespace(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[str]:
    """The name of a namespace that is new, takes none but restricted pods, and is empty before the next."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:30].strip("-")
    name = f"{words}-{secrets.token_hex(3)}"
    new_namespace(cluster, name)
    yield name
    cluster.kubectl("delete", "rlj", "--all", "-n", name, "--wait=false")
    cluster.kubectl("delete", "pods", "--all", "-n", name, "--grace-period=1", seconds=300)
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def volume(cluster: Cluster, namespace: str) -> Path:
    """The folder of the namespace's claim `runs`."""
    return claim(cluster, namespace)


@pytest.fixture
def run(cluster: Cluster, namespace: str, volume: Path) -> NodeJob:
    """A job that is not applied yet."""
    return NodeJob(cluster, namespace, volume)
