"""Makes all that clusters need ahead of their start, which takes minutes the first time."""

from collections.abc import Callable, Iterable

from tests.cluster.binaries import manifests, program
from tests.cluster.families import CONTROL_PLANE, kuberay
from tests.cluster.seed import seed


def prepare(kuberay_versions: Iterable[str], say: Callable[[str], None] = print) -> None:
    """Builds all that clusters with these versions of KubeRay need. CannotBuild, ProcessFailed."""
    versions = list(kuberay_versions)
    for family, names in (*CONTROL_PLANE, *((kuberay(version), ("kuberay",)) for version in versions)):
        for name in names:
            program(family, name, say)
        for kind in family.manifests:
            manifests(family, kind.name, say)
    for version in versions:
        seed(version, say)
