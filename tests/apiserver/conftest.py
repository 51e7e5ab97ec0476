"""The local Kubernetes as fixtures; `tools.cluster` shows their use.

Programs that are missing are built once the tests are collected, so that no test's time limit holds for it.
If they cannot be, every test here is skipped and says what is missing. Where CI is set, that is an error.
"""

import os
import re
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from rljob_client.credentials import find_credentials
from tests.support.operator.kube_site import ProxiedSite, Site, proxied_site, site
from tests.support.runtime.prepared import prepared_workers
from tests.support.runtime.ray_pods import RayPods
from tests.support.scheduling import Together, unit_of_apiserver
from tools.cluster import KUBERAY_VERSIONS, ApiError, CannotBuild, Cluster, ProcessFailed, prepare

HERE = Path(__file__).parent
CHOSEN = pytest.StashKey[str]()
PROBLEM = pytest.StashKey[Exception]()
TEST_SECONDS = 1000.0
"""For a test without its fixtures: they start processes, each of which has a deadline of its own. Longer than
all that a test waits for, one after the other, takes on a machine that does much else."""
TIMINGS = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    # Known to pytest only if this folder is named on its command line; RLJOB_KUBERAY works always.
    parser.addoption("--kuberay", metavar="VERSION", help=f"KubeRay: {', '.join(KUBERAY_VERSIONS)}")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "every_kuberay: the test runs once under each version of KubeRay")
    version = config.getoption("--kuberay", default=None) or os.environ.get("RLJOB_KUBERAY")
    if version and version not in KUBERAY_VERSIONS:
        raise pytest.UsageError(f"no KubeRay {version}: choose one of {', '.join(KUBERAY_VERSIONS)}")
    config.stash[CHOSEN] = version or KUBERAY_VERSIONS[0]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.get_closest_marker("every_kuberay"):
        if "kuberay" not in metafunc.fixturenames:
            metafunc.fixturenames.append("kuberay")
        metafunc.parametrize("kuberay", KUBERAY_VERSIONS, indirect=True, scope="module")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """How several workers (`-n`), each with a cluster of its own, share the tests."""
    return Together(config, log, lambda nodeid: unit_of_apiserver(nodeid, config.stash[CHOSEN]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS, func_only=True))


def pytest_collection_finish(session: pytest.Session) -> None:
    config = session.config
    items = [
        each for each in session.items if HERE in each.path.parents and isinstance(each, pytest.Function)
    ]
    if not items or config.option.collectonly:
        return
    versions = {_kuberay_of(each) for each in items}
    capture = config.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():
            prepare(sorted(versions), lambda line: print(line, flush=True))
    except (CannotBuild, ProcessFailed, ApiError, TimeoutError) as error:
        config.stash[PROBLEM] = error


def _kuberay_of(item: pytest.Item) -> str:
    """The version of KubeRay that a test wants."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return str(parameters.get("kuberay", item.config.stash[CHOSEN]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if line := config.stash.get(TIMINGS, None):
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def programs(pytestconfig: pytest.Config) -> None:
    """The programs of a cluster are built."""
    if problem := pytestconfig.stash.get(PROBLEM, None):
        if isinstance(problem, CannotBuild) and not os.environ.get("CI"):
            pytest.skip(str(problem))
        pytest.fail(str(problem), pytrace=False)


@pytest.fixture(scope="session")
def cluster(programs: None, pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """A cluster that all tests share, with fake GPU and NPU nodes and an audit log."""
    with Cluster(kuberay=pytestconfig.stash[CHOSEN], audit=True) as started:
        parts = ", ".join(f"{part} {seconds:.1f}" for part, seconds in started.timings.items())
        total = sum(started.timings.values())
        pytestconfig.stash[TIMINGS] = f"cluster started in {total:.1f} s ({parts})"
        yield started


@pytest.fixture(scope="module")
def kuberay(request: pytest.FixtureRequest) -> str:
    """The version of KubeRay for a test: each in turn if it is marked `every_kuberay`."""
    # Of module scope only so that pytest groups a module's tests by version: another version takes seconds.
    version: str = getattr(request, "param", request.config.stash[CHOSEN])
    return version


@pytest.fixture(autouse=True)
def whole(request: pytest.FixtureRequest) -> Iterator[None]:
    """Before a test, its version of KubeRay runs. After it, what it stopped is started again.

    Fails if a component ended by itself.
    """
    if "cluster" not in request.fixturenames:
        yield
        return
    shared: Cluster = request.getfixturevalue("cluster")
    shared.start_kuberay(_kuberay_of(request.node))
    yield
    shared.repair()


@pytest.fixture
def namespace(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[str]:
    """The name of a namespace that is new, and is deleted in the end. Pods can be made in it, and what each
    namespace gets by itself is there."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:40].strip("-")
    name = f"{words}-{secrets.token_hex(3)}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    cluster.api.request("POST", "/api/v1/namespaces", body)
    # Before the controller has made it, the API server refuses every pod.
    cluster.wait(f"/api/v1/namespaces/{name}/serviceaccounts", bool, f"a default service account in {name}")
    # Made by another controller, at a moment of its own: a watch must not tell of it in the middle of a test.
    cluster.wait(f"/api/v1/namespaces/{name}/configmaps", bool, f"the root certificate in {name}")
    yield name
    cluster.repair()
    cluster.api.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
def pods() -> Iterator[RayPods]:
    """A Ray cluster whose nodes stand for pods, and whose workers have imported their packages when they
    start."""
    with prepared_workers(), RayPods() as pods:
        yield pods


@pytest.fixture
async def here(cluster: Cluster) -> AsyncIterator[Site]:
    """The operator's API client, as the administrator."""
    async with site(find_credentials(cluster.kubeconfig)) as made:
        yield made


@pytest.fixture
async def there(cluster: Cluster) -> AsyncIterator[ProxiedSite]:
    """The same through a proxy that does harm on command."""
    async with proxied_site(cluster.kubeconfig) as made:
        yield made
