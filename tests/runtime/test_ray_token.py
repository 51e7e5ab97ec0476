"""Ray as the pods start it: its processes know each other by a token from a file, the kubelet's probes need
none, and nobody else gets in. A head that ends since its GCS was killed says that in words."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from rljob_operator.plan.last_words import ONE_ENDED, last_words
from rljob_operator.render.keys import FOLDER, RAY_TOKEN
from tests.support.operator.rendered import cluster, containers, environment
from tools.cluster.ports import Ports

pytestmark = pytest.mark.timeout(900)

ATTEMPTS = 3
PORTS = Ports()
SECONDS = 120.0
MESSAGE_BYTES = 2048
"""Of a container's log that the kubelet takes for its last words, of its end."""
GIVEN = "given-"
"""What names of files with a token begin with that a command was given."""
RAY = str(Path(sys.executable).with_name("ray"))
SMALL = ["--num-gpus=0", f"--object-store-memory={80 * 2**20}", "--block"]
DRIVER = """
import ray
ray.init(address="ADDRESS", log_to_driver=False)
task = ray.remote(num_cpus=0, resources={"trainer": 1})(lambda: "from the worker")
print(ray.get(task.remote(), timeout=60))
"""


@dataclass
class Nodes:
    """A head and a worker that run."""

    folder: Path
    token: str
    host: str
    gcs: int
    dashboard: int
    agents: list[int]
    """Ports of the agents that the probes ask: of the head, of the worker."""
    processes: list[subprocess.Popen[bytes]]

    @property
    def address(self) -> str:
        return f"{self.host}:{self.gcs}"

    def run(self, command: list[str], token: str | None) -> subprocess.CompletedProcess[str]:
        """A command in an environment with this token, or with none."""
        # Ray would look in the home folder, too.
        own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
        own["HOME"] = str(self.folder)
        if token is not None:
            given = self.folder / f"{GIVEN}{secrets.token_hex(4)}"
            given.write_text(token)
            own |= ray_environment(given)
        return subprocess.run(command, env=own, capture_output=True, text=True, timeout=SECONDS, check=False)


def ray_environment(token_file: Path) -> dict[str, str]:
    """What the containers of Ray are told of it."""
    variables = environment(containers(cluster())["ray-head"])
    chosen = {name: value for name, value in variables.items() if name.startswith("RAY_")}
    assert chosen["RAY_AUTH_TOKEN_PATH"] == f"{FOLDER}/{RAY_TOKEN}"
    return {**chosen, "RAY_AUTH_TOKEN_PATH": str(token_file)}


def healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextmanager
def ray_node(nodes: Nodes, name: str, agent: int, *options: str) -> Iterator[None]:
    """A node, once its agent says that it is healthy. Ray gives its processes 30 s to start, which a busy
    machine may need several times."""
    for attempt in range(1, ATTEMPTS + 1):
        process = started(nodes, name, agent, options)
        try:
            if process.poll() is None:
                nodes.processes.append(process)
                yield
                return
        finally:
            end(process)
        said = (nodes.folder / f"{name}.log").read_text()
        assert "timed out during startup" in said and attempt < ATTEMPTS, said


def started(nodes: Nodes, name: str, agent: int, options: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """The process of a node that is healthy, or has ended."""
    variables = {**os.environ, **ray_environment(nodes.folder / "token"), "HOME": str(nodes.folder)}
    command = [RAY, "start", f"--dashboard-agent-listen-port={agent}", *options, *SMALL]
    with (nodes.folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, env=variables, stdout=log, stderr=log)
    deadline = time.monotonic() + SECONDS
    while process.poll() is None and not healthy(f"http://{nodes.host}:{agent}/api/healthz"):
        if time.monotonic() > deadline:
            end(process)
            raise AssertionError((nodes.folder / f"{name}.log").read_text())
        time.sleep(0.5)  # a port that is not listened on gives no event
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        for each in family:
            with suppress(psutil.NoSuchProcess):
                each.kill()
    process.wait(30)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    import ray

    # Ray's sockets are in it: its path must be short.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as name:
        folder, agents = Path(name), [PORTS.take(), PORTS.take()]
        host = ray.util.get_node_ip_address()
        made = Nodes(folder, secrets.token_hex(32), host, PORTS.take(), PORTS.take(), agents, [])
        (folder / "token").write_text(made.token)
        head = ray_node(
            made, "head", agents[0], "--head", f"--port={made.gcs}", "--num-cpus=0",
            "--dashboard-host=127.0.0.1", f"--dashboard-port={made.dashboard}",
            f"--ray-client-server-port={PORTS.take()}", f"--metrics-export-port={PORTS.take()}",
            f"--temp-dir={folder / 'ray'}",
        )  # fmt: skip
        worker = ray_node(
            made, "worker", agents[1], f"--address={made.address}", "--num-cpus=1",
            '--resources={"trainer": 1}', f"--metrics-export-port={PORTS.take()}",
        )  # fmt: skip
        with head, worker:
            yield made


def health_check(nodes: Nodes, token: str | None) -> subprocess.CompletedProcess[str]:
    """With which the workers' init container waits for the head."""
    return nodes.run([RAY, "health-check", "--address", nodes.address], token)


def test_who_has_the_token_is_served(nodes: Nodes) -> None:
    assert health_check(nodes, nodes.token).returncode == 0
    ran = driver(nodes, nodes.token)
    assert ran.stdout.strip() == "from the worker", ran.stderr


def driver(nodes: Nodes, token: str | None) -> subprocess.CompletedProcess[str]:
    return nodes.run([sys.executable, "-c", DRIVER.replace("ADDRESS", nodes.address)], token)


WRONG = {"none": None, "another": "f" * 64}


def test_who_has_not_is_refused(nodes: Nodes) -> None:
    """All at once: Ray tries again for twenty seconds with each."""
    with ThreadPoolExecutor(2 * len(WRONG)) as pool:
        checks = {name: pool.submit(health_check, nodes, token) for name, token in WRONG.items()}
        drivers = {name: pool.submit(driver, nodes, token) for name, token in WRONG.items()}
    for name in WRONG:
        refused, ran = checks[name].result(), drivers[name].result()
        assert refused.returncode != 0, name
        assert "Authentication token is missing or incorrect" in refused.stderr, name
        assert ran.returncode != 0 and "from the worker" not in ran.stdout, name


@pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer " + "f" * 64}], ids=["none", "another"])
def test_the_dashboard_takes_no_job_without_it(nodes: Nodes, header: dict[str, str]) -> None:
    job = json.dumps({"entrypoint": "true"}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{nodes.dashboard}/api/jobs/", job, header)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=30)
    assert refused.value.code == (403 if header else 401)


def test_the_kubelets_probes_need_none(nodes: Nodes) -> None:
    """Of KubeRay from 1.6 on: HTTP at the pod's address."""
    for port in nodes.agents:
        assert healthy(f"http://{nodes.host}:{port}/api/healthz")


@pytest.mark.skipif(shutil.which("wget") is None, reason="wget is not installed")
def test_the_probes_of_older_kuberay_need_none(nodes: Nodes) -> None:
    """Of KubeRay before 1.6: a command in Ray's container."""
    wget = "wget --tries 1 -T {} -q -O- http://localhost:{}/{} | grep success"
    raylets = [wget.format(2, port, "api/local_raylet_healthz") for port in nodes.agents]
    gcs = wget.format(10, nodes.dashboard, "api/gcs_healthz")
    for probe in (f"{raylets[0]} && {gcs}", raylets[1]):
        assert nodes.run(["bash", "-c", probe], None).returncode == 0


def test_the_token_is_in_no_log_argument_or_variable(nodes: Nodes) -> None:
    places = [path for path in nodes.folder.rglob("*") if path.is_file()]
    places = [path for path in places if path.name != "token" and not path.name.startswith(GIVEN)]
    assert any(path.name == "head.log" for path in places)
    for process in nodes.processes:
        for each in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
            places += [Path(f"/proc/{each.pid}/environ"), Path(f"/proc/{each.pid}/cmdline")]
    found = []
    for path in places:
        try:
            found += [path] if nodes.token.encode() in path.read_bytes() else []
        except OSError:
            continue  # a process that ended, or a log that was rotated
    assert found == []


def test_a_head_whose_gcs_is_killed_says_so(nodes: Nodes) -> None:
    """The last test of these nodes: Ray ends all of the head."""
    head, _ = nodes.processes
    family = psutil.Process(head.pid).children(recursive=True)
    [gcs] = [each for each in family if each.name() == "gcs_server"]
    gcs.kill()
    assert head.wait(SECONDS) != 0
    said = (nodes.folder / "head.log").read_bytes()[-MESSAGE_BYTES:].decode(errors="replace")
    told = last_words(said)
    # What Ray's other processes say in their end may have pushed the name out of the message.
    assert told == "Ray's gcs_server was killed by signal 9" or told.endswith(ONE_ENDED), said
    assert "Traceback" not in told and "Parent process" not in told
