"""Makes all that clusters need ahead of their start, which takes minutes the first time."""

from collections.abc import Callable, Iterable

from tools.cluster.binaries import manifests, program
from tools.cluster.families import CONTROL_PLANE, NODE, kuberay
from tools.cluster.packages import ensure_packages
from tools.cluster.pause import pause_archive
from tools.cluster.seed import seed


def prepare(
    kuberay_versions: Iterable[str], say: Callable[[str], None] = print, *, node: bool = False
) -> None:
    """Builds all that clusters with these versions of KubeRay need; with `node` also what a real node does,
    for which it installs packages. CannotBuild, ProcessFailed."""
    versions = list(kuberay_versions)
    families = [*CONTROL_PLANE, *((kuberay(version), ("kuberay",)) for version in versions)]
    if node:
        ensure_packages(say=say)
        families += NODE
    for family, names in families:
        for name in names:
            program(family, name, say)
        for kind in family.manifests:
            manifests(family, kind.name, say)
    for version in versions:
        seed(version, say)
    if node:
        pause_archive(say)
