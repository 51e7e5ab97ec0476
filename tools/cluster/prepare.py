"""Makes all that clusters need ahead of their start, which takes minutes the first time.

Guarantees: nothing is built that the kind of nodes does not need; whoever waits is told which of how many
programs is built, and about how long the rest takes.
"""

import time
from collections.abc import Callable, Iterable

from tools.cluster.binaries import cache, is_built, manifests, program
from tools.cluster.build_time import in_words, seconds_left
from tools.cluster.families import CONTROL_PLANE, FAKE_NODES, NODE, Family, kuberay
from tools.cluster.packages import ensure_packages
from tools.cluster.pause import pause_archive
from tools.cluster.seed import seed


def prepare(
    kuberay_versions: Iterable[str], say: Callable[[str], None] = print, *, node: bool = False
) -> None:
    """Builds all that clusters with these versions of KubeRay need, and their nodes: fake ones, or with
    `node` a real one, for which it installs packages. CannotBuild, ProcessFailed."""
    versions = list(kuberay_versions)
    if node:
        ensure_packages(say=say)
    families = families_of(versions, node)
    _build([(family, name) for family, names in families for name in names], say)
    for family, _ in families:
        for kind in family.manifests:
            manifests(family, kind.name, say)
    for version in versions:
        seed(version, say)
    if node:
        pause_archive(say)


def families_of(kuberay_versions: Iterable[str], node: bool) -> list[tuple[Family, tuple[str, ...]]]:
    """The families of programs that clusters need, each with those of its programs."""
    operators = [(kuberay(version), ("kuberay",)) for version in kuberay_versions]
    return [*CONTROL_PLANE, *operators, *(NODE if node else FAKE_NODES)]


def _build(programs: list[tuple[Family, str]], say: Callable[[str], None]) -> None:
    missing = [(family, name) for family, name in programs if not is_built(family, name)]
    if missing:
        say(
            f"{len(missing)} programs are built from source, once: they are kept in {cache()}, which with "
            "the images of the project takes about 30 GB, and Go keeps 10 GB for itself"
        )
    names, begun = [name for _, name in missing], time.monotonic()
    for number, (family, name) in enumerate(missing):
        left = in_words(seconds_left(names[:number], names[number:], time.monotonic() - begun))

        def told(text: str, place: str = f"{number + 1} of {len(missing)}, {left}") -> None:
            say(f"{place}: {text}")

        program(family, name, told)
