"""Helm and the project's chart.

Helm keeps its own files in a folder of the call's, so that nothing of the user's changes what it does.
"""

import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tools.cluster.binaries import program
from tools.cluster.families import HELM

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "rljob-operator"
RELEASE, NAMESPACE = "rljob", "rljob-system"
SECONDS = 240.0

Object = dict[str, Any]


class HelmFailed(Exception):
    """What Helm said."""


def helm(*arguments: str, kubeconfig: Path | None = None, seconds: float = SECONDS) -> str:
    """The output of a command. HelmFailed, TimeoutExpired."""
    with tempfile.TemporaryDirectory(prefix="rljob-helm-") as home:
        environment = {"HOME": home, "PATH": "/usr/bin:/bin", "KUBECONFIG": str(kubeconfig or "/nonexistent")}
        done = subprocess.run(
            [str(program(HELM, "helm")), *arguments],
            capture_output=True,
            text=True,
            timeout=seconds,
            env=environment,
        )
    if done.returncode:
        raise HelmFailed(done.stderr + done.stdout)
    return done.stdout


def values_options(values: Mapping[str, Any]) -> list[str]:
    """Options that set values by their paths, such as `{"crds.keep": False}`."""
    return [f"--set-json={path}={json.dumps(value)}" for path, value in values.items()]


def render(
    values: Mapping[str, Any] | None = None,
    *,
    chart: Path = CHART,
    release: str = RELEASE,
    namespace: str = NAMESPACE,
) -> list[Object]:
    """The objects that the chart makes. HelmFailed."""
    options = [f"--namespace={namespace}", "--kube-version=1.34.1", *values_options(values or {})]
    text = helm("template", release, str(chart), *options)
    return [each for each in yaml.safe_load_all(text) if each]


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    """Those of a kind."""
    return [each for each in objects if each["kind"] == kind]


def the(objects: list[Object], kind: str, name: str | None = None) -> Object:
    """The one object of a kind (and name)."""
    found = [each for each in of_kind(objects, kind) if name in (None, each["metadata"]["name"])]
    assert len(found) == 1, f"{len(found)} objects {kind} {name or ''}"
    return found[0]
