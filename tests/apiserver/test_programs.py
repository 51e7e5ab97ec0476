"""Programs of the local Kubernetes: how they are kept, and what is said where they cannot be built."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools.cluster.binaries import CannotBuild, cache, kept, manifests, program
from tools.cluster.families import ETCD, FAMILIES, KUBE, KUBERAY_VERSIONS, KWOK, kuberay

ROOT = Path(__file__).parents[2]


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("RLJOB_CLUSTER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: f"{family.name}-{family.version}")
def test_each_module_builds_the_programs_of_its_family(family):
    go_mod = (family.folder / "go.mod").read_text()
    single = re.findall(r"^tool ([^(\s]+)$", go_mod, re.MULTILINE)
    block = go_mod.partition("tool (")[2].partition(")")[0].split()
    own = {package for package in family.programs.values() if package == "."}
    assert set(family.programs.values()) - own == {*single, *block}


def test_versions_are_those_of_the_modules():
    assert [kuberay(version).version for version in KUBERAY_VERSIONS] == list(KUBERAY_VERSIONS)
    with pytest.raises(ValueError, match=r"no KubeRay 1\.3\.2 here: choose one of 1\.6\.2"):
        kuberay("1.3.2")


def test_the_version_is_stamped_into_kubernetes():
    assert "-X k8s.io/component-base/version.gitVersion=v1.34.1 " in KUBE.linker_flags
    assert "-X k8s.io/component-base/version.gitMinor=34 " in KUBE.linker_flags


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"RLJOB_CLUSTER_CACHE": "/kept"}, "/kept"),
        ({"RLJOB_CLUSTER_CACHE": "/kept", "XDG_CACHE_HOME": "/xdg"}, "/kept"),
        ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/rljob-cluster"),
        ({"HOME": "/home/me"}, "/home/me/.cache/rljob-cluster"),
    ],
)
def test_the_cache_is_where_the_environment_says(monkeypatch, variables, folder):
    for name in ("RLJOB_CLUSTER_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache() == Path(folder)


def test_what_is_kept_is_made_once_and_again_when_it_is_made_otherwise(empty_cache):
    made = []

    def make(how):
        def write(target):
            made.append(how)
            target.write_text(how)

        return kept(ETCD, "thing", how, write).read_text()

    assert [make("one"), make("one"), make("two"), make("two")] == ["one", "one", "two", "two"]
    assert made == ["one", "two"]
    assert (empty_cache / f"etcd-{ETCD.version}" / "thing").exists()


def test_nothing_is_kept_of_what_failed_half_way(empty_cache):
    def fail(target):
        target.write_text("half")
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        kept(ETCD, "thing", "how", fail)
    assert [path.name for path in (empty_cache / f"etcd-{ETCD.version}").iterdir()] == [".lock"]


def test_processes_that_ask_together_make_it_once(empty_cache, tmp_path):
    count = tmp_path / "count"
    code = f"""
from tools.cluster.binaries import kept
from tools.cluster.families import ETCD
def make(target):
    with open({str(count)!r}, "a") as file:
        file.write("made ")
    target.write_text("whole")
assert kept(ETCD, "thing", "how", make).read_text() == "whole"
"""
    asking = [subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) for _ in range(4)]
    assert [each.wait(60) for each in asking] == [0, 0, 0, 0]
    assert count.read_text() == "made "


def test_the_second_call_takes_milliseconds(programs):
    program(KUBE, "kube-apiserver")
    seconds = []
    for _ in range(10):
        started = time.monotonic()
        program(KUBE, "kube-apiserver")
        seconds.append(time.monotonic() - started)
    # The fastest: whatever else the machine does holds up some of them.
    assert min(seconds) < 0.05


def test_stages_and_definitions_are_kept_beside_the_programs(programs):
    names = {path.name for path in manifests(KWOK, "stages")}
    assert names == {
        "pod-ready.yaml",
        "pod-complete.yaml",
        "pod-delete.yaml",
        "node-initialize.yaml",
        "node-heartbeat-with-lease.yaml",
    }
    newest = kuberay(KUBERAY_VERSIONS[0])
    assert "ray.io_rayclusters.yaml" in {path.name for path in manifests(newest, "crds")}


def test_without_go_the_error_says_what_is_missing_and_what_to_do(empty_cache, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CannotBuild) as missing:
        program(ETCD, "etcd")
    text = str(missing.value)
    assert (
        f"etcd {ETCD.version} is not in {empty_cache} and cannot be built: the go command is not on" in text
    )
    assert "Install Go 1.24.0 or newer, or point RLJOB_CLUSTER_CACHE to a folder that has it." in text


@pytest.mark.parametrize(("ci", "outcome"), [("", "SKIPPED [1] tests/"), ("true", "ERROR tests/")])
def test_without_go_the_tier_is_skipped_with_the_reason_and_fails_in_ci(tmp_path, ci, outcome):
    test = "tests/apiserver/test_cluster.py::test_api_server_is_ready_and_names_its_version"
    environment = {**os.environ, "PATH": "/nowhere", "RLJOB_CLUSTER_CACHE": str(tmp_path), "CI": ci}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-ra", test],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert outcome in done.stdout
    assert "the go command is not on PATH" in done.stdout
