"""The product on a cluster with a node: its images, loaded; the operator, installed by its chart.

Used by `make cluster-run` and by the tests of tests/node, which both start from a cluster that has KubeRay
and no operator.
"""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.cluster import images
from tools.cluster.binaries import program
from tools.cluster.cluster import Cluster
from tools.cluster.families import HELM, KUBE, KUBERAY_VERSIONS
from tools.cluster.node_shell import NodeShell
from tools.cluster.prepare import prepare
from tools.cluster.processes import ProcessFailed

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "rljob-operator"
RELEASE, NAMESPACE = "rljob", "rljob-system"
IMAGES = ("operator", "runtime-cpu")
INSTALL_SECONDS = 180
"""So long Helm waits for the operator to be ready."""


def build_images(say: Callable[[str], None] = print) -> list[images.Built]:
    """The operator's image and that of jobs on CPUs, in this order; what did not change is there already.

    CannotBuild.
    """
    return [images.build(name, say) for name in IMAGES]


@contextmanager
def product_cluster(say: Callable[[str], None] = print) -> Iterator[Cluster]:
    """A cluster with a real node, KubeRay and the operator, and no job yet. CannotBuild, ProcessFailed."""
    prepare(KUBERAY_VERSIONS[:1], say, node=True)
    build_images(say)
    with Cluster(nodes={}, node=True, audit=True) as started:
        install(started.folder, say)
        yield started


def install(folder: Path, say: Callable[[str], None] = print) -> None:
    """Puts the images on the node of the cluster in `folder` and the operator into it, ready to take jobs.

    Done again it upgrades. CannotBuild, ProcessFailed.
    """
    operator, runtime = build_images(say)
    shell = NodeShell(folder)
    for image in (operator, runtime):
        if images.load(image, shell):
            say(f"loaded {image.reference}")
    shell.drop_unnamed_images()
    repository, _, tag = operator.reference.rpartition(":")
    values = {
        "image.repository": repository,
        "image.tag": tag,
        "runtimeImages.cpu": runtime.reference,
    }
    helm(
        folder,
        *(
            "upgrade",
            RELEASE,
            str(CHART),
            "--install",
            "--take-ownership",
            "--wait",
            f"--timeout={INSTALL_SECONDS}s",
        ),
        *(f"--namespace={NAMESPACE}", "--create-namespace"),
        *(f"--set-string={name}={value}" for name, value in values.items()),
    )
    say(f"installed the chart: release {RELEASE} in namespace {NAMESPACE}")


def helm(folder: Path, *arguments: str) -> str:
    """The output of helm, as administrator. ProcessFailed with what it said."""
    return _run([str(program(HELM, "helm")), *arguments], folder)


def kubectl(folder: Path, *arguments: str, stdin: str | None = None) -> str:
    """The output of kubectl, as administrator. ProcessFailed with what it said."""
    return _run([str(program(KUBE, "kubectl")), *arguments], folder, stdin)


def _run(command: list[str], folder: Path, stdin: str | None = None) -> str:
    environment = {
        "KUBECONFIG": str(folder / "kubeconfig"),
        "PATH": "/usr/bin:/bin",
        # Helm's own files: nothing of the user's changes what it does.
        "HOME": str(folder),
    }
    try:
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=2 * INSTALL_SECONDS,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise ProcessFailed(f"`{' '.join(command)}` took more than {2 * INSTALL_SECONDS} s") from None
    if done.returncode:
        raise ProcessFailed(f"`{' '.join(command)}` failed: {done.stderr[-3000:]}")
    return done.stdout
