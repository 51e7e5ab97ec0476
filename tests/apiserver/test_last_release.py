"""The last release and this one in one cluster: its definition of RLJobs, its operator and its image."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.support.last_release import THIS_RELEASE, Release
from tests.support.operator.operator_site import JobClient, condition, running_operator, until
from tests.support.runtime.driven import (
    TEST_SECONDS,
    Driven,
    assert_every_prompt_once,
    hurry,
    paced,
)
from tests.support.runtime.ray_pods import RayPods
from tests.support.runtime.runs import processes
from tools.cluster import Cluster
from tools.cluster.custom_resources import apply_definitions

DRIVER = Path(__file__).parents[1] / "support" / "runtime" / "reporting_driver.py"
PROBE = "/apis/rljob.dev/v1alpha1/namespaces/default/rljobs?dryRun=All"


class Parts(NamedTuple):
    """Of which release each part is; `image`: of attempts that begin."""

    definition: str
    operator: str
    image: str


ORDER = [
    Parts("last", "last", "last"),
    Parts("this", "last", "last"),
    Parts("this", "this", "last"),
    Parts("last", "this", "last"),
    Parts("last", "this", "this"),
    Parts("this", "this", "this"),
    Parts("this", "last", "this"),
    Parts("last", "last", "this"),
    Parts("last", "last", "last"),
]
"""Each of the eight, one part exchanged at a time; the last step is the way back."""


@pytest.fixture(scope="module")
def releases(last_release) -> dict[str, Release]:
    return {"last": last_release, "this": THIS_RELEASE}


@pytest.fixture(scope="module")
def cluster(programs):
    """One of its own: a definition is every namespace's."""
    with Cluster(nodes={"nvidia.com/gpu": 1}) as started:
        yield started


class Image:
    """Drivers of a release, one after the other."""

    def __init__(self, release: Release, log: Path) -> None:
        self._log = log.open("w")
        self._process = subprocess.Popen(
            [sys.executable, str(DRIVER)], env={**os.environ, **release.environment}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
        )  # fmt: skip

    def drive(self, client: JobClient) -> dict[str, object]:
        """What the driver of the job's attempt says, in the environment that its operator gave it."""
        attempt = str(client.get()["status"]["attempt"])
        # The head of an attempt that has ended may still be on its way out.
        [head] = [
            pod for pod in client.pods("head") if pod["metadata"]["labels"]["rljob.dev/attempt"] == attempt
        ]
        [driver] = [each for each in head["spec"]["containers"] if each["name"] == "driver"]
        assert driver["command"] == ["rljob", "drive"]
        account = head["spec"]["serviceAccountName"]
        environment = {each["name"]: each["value"] for each in driver["env"] if "value" in each} | {
            "RLJOB_NAMESPACE": client.namespace,
            "RLJOB_KUBECONFIG": str(client.cluster.kubeconfig_of(client.namespace, account)),
        }
        self._process.stdin.write(json.dumps(environment) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, Path(self._log.name).read_text()
        return json.loads(answer)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()
        self._log.close()


def field_paths(schema, path=()):
    for name, below in schema.get("properties", {}).items():
        yield (*path, name)
        yield from field_paths(below, (*path, name))


def serve(cluster, definition: Path) -> None:
    """Replace the definition, and wait until objects get its defaults."""
    apply_definitions(cluster.api, [definition])
    [version] = yaml.safe_load(definition.read_text())["spec"]["versions"]
    wanted = set(field_paths(version["schema"]["openAPIV3Schema"]))

    def served() -> bool:
        found = cluster.api.request("GET", "/openapi/v3/apis/rljob.dev/v1alpha1")["components"]["schemas"]
        [schema] = [each for name, each in found.items() if name.endswith(".RLJob")]
        return wanted == {each for each in field_paths(schema) if each[0] != "metadata" or len(each) == 1}

    until(served, "the definition is served")


def attempt_of(client: JobClient):
    """What a new attempt, or a change of this one, would change."""
    clusters = client.cluster.api.items(client.clusters_path)
    mine = [each for each in clusters if each["metadata"]["labels"]["rljob.dev/job"] == client.name]
    found = {each["metadata"]["name"]: each["metadata"] for each in [*client.pods(), *mine]}
    return {name: (each["uid"], each.get("generation")) for name, each in found.items()}


def test_every_order_in_which_parts_are_exchanged(cluster, releases, tmp_path):
    """A job that runs goes on through all of them. One that is made is driven, tells how far it is, and
    ends; an attempt that fails is followed by another."""
    lasting = JobClient(cluster, "default", "lasting")
    with ExitStack() as stack:
        operators = {
            name: stack.enter_context(
                running_operator(
                    cluster, tmp_path, "default", name=name, start=False, environment=release.environment
                )
            )
            for name, release in releases.items()
        }
        images = {name: Image(release, tmp_path / f"{name}-image.log") for name, release in releases.items()}
        for image in images.values():
            stack.callback(image.close)
        before, made = None, {}
        for number, parts in enumerate(ORDER):
            if before is None or before.definition != parts.definition:
                serve(cluster, releases[parts.definition].definition)
            if before is None or before.operator != parts.operator:
                if before is not None:
                    operators[before.operator].process.stop()
                operators[parts.operator].process.start()
            if before is None:
                lasting.create()
                lasting.wait_phase("Running")
                images[parts.image].drive(lasting)
                made = attempt_of(lasting)
            job = JobClient(cluster, "default", f"job-{number}")
            job.create()
            job.wait_phase("Running")
            assert images[parts.image].drive(job) == {"written": True, "steps": 4}, parts
            job.wait(lambda each: each["status"]["training"].get("step") == 3, "step 3")
            job.end_driver(0)
            said = job.wait_phase("Complete")
            assert "Trained 3 of 4 steps." in condition(said, "Complete")["message"], parts
            lasting.operator_has_seen()
            status = lasting.get()["status"]
            assert (status["phase"], status["attempt"]) == ("Running", 1), parts
            assert attempt_of(lasting) == made, parts
            before = parts
        lasting.end_driver(1, "lost")
        lasting.wait_phase("Running", attempt=2)
        assert images["this"].drive(lasting) == {"written": True, "steps": 4}


@contextmanager
def attempt(run: Driven, release: Release, monkeypatch):
    """The next attempt of a job, in pods of this release's image."""
    with monkeypatch.context() as patch, ExitStack() as stack:
        for name, value in release.environment.items():
            patch.setenv(name, value)
        pods = stack.enter_context(RayPods())
        pods.add("trainer")
        pods.add("fast")
        run.start(pods, release.environment)
        try:
            yield
        finally:
            if run.process.poll() is None:
                run.process.kill()
                run.process.wait(30)


def assert_workers_are_of(release: Release) -> None:
    found = processes(os.getpid(), "ray::RolloutWorker")
    assert {each.environ()["PYTHONPATH"] for each in found} == {release.environment["PYTHONPATH"]}


@pytest.mark.timeout(TEST_SECONDS, func_only=True)
def test_an_attempt_goes_on_where_one_of_the_other_image_ended(
    cluster, namespace, releases, tmp_path, monkeypatch
):
    """The last release's under this definition, this one's, and the last one's under its own definition."""
    last, this, steps = releases["last"], releases["this"], 8
    serve(cluster, this.definition)
    pools = {"trainer": {"replicas": 1}, "fastRollout": {"replicas": 1}}
    run = Driven(cluster, namespace, None, tmp_path, paced(tmp_path, steps, pools))
    for release, reached in ((last, 2), (this, 4)):
        with attempt(run, release, monkeypatch):
            run.wait_for_step(reached)
            assert_workers_are_of(release)
            run.ask(suspend=True)
            assert run.end() == 130, run.said
        run.ask(suspend=False)
    serve(cluster, last.definition)
    hurry(run)
    with attempt(run, last, monkeypatch):
        assert run.end(400) == 0, run.said
    assert_every_prompt_once(run, steps)
    assert run.training["completed"]
