"""Programs for the local Kubernetes, built from source once and kept.

They lie in `<cache>/<family>-<version>/`, where <cache> is RLJOB_CLUSTER_CACHE, or rljob-cluster below
XDG_CACHE_HOME, or below ~/.cache. A program appears there whole or not at all, and is built anew only when
its module or its build options change. Processes that ask for the same family at the same time build it once.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tools.cluster.alone import alone
from tools.cluster.families import Family, Manifests

BUILD_SECONDS = 3600.0
"""For one program. The whole of Kubernetes compiles in 5 minutes on two free cores."""


class CannotBuild(Exception):
    """A program is neither in the cache nor can it be built; the text says why and what to do."""


def cache() -> Path:
    """The folder that keeps what was built."""
    if chosen := os.environ.get("RLJOB_CLUSTER_CACHE"):
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rljob-cluster"


def program(family: Family, name: str, say: Callable[[str], None] = print) -> Path:
    """The path of a program of `family`, built now if it is not there. CannotBuild."""
    build = _build_command(family, name)
    return kept(family, name, " ".join(build), lambda target: _compile(family, name, build, target, say))


def is_built(family: Family, name: str) -> bool:
    """Whether the program is there, so that `program` has nothing to build."""
    how = " ".join(_build_command(family, name))
    return _is_current(*_places(family, name), _digest(family, how))


def manifests(family: Family, name: str, say: Callable[[str], None] = print) -> list[Path]:
    """The paths of the YAML files `name` of `family`, sorted by file name. CannotBuild."""
    kind = next(kind for kind in family.manifests if kind.name == name)
    folder = kept(family, name, repr(kind), lambda target: _copy(family, kind, target, say))
    return sorted(folder.glob("*.yaml"))


def kept(family: Family, name: str, how: str, make: Callable[[Path], None]) -> Path:
    """The path of `name` in the cache; `make(target)` supplies it if it is absent or was made otherwise.

    `how` says what it is made from, besides the family's module.
    """
    path, stamp = _places(family, name)
    folder = path.parent
    wanted = _digest(family, how)
    if _is_current(path, stamp, wanted):
        return path
    with alone(folder):
        if _is_current(path, stamp, wanted):
            return path
        # In the same folder, so that renaming it into its place is one step.
        with tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as temporary:
            made = Path(temporary) / name
            make(made)
            # The stamp goes first and comes back last: what a kill leaves counts as not made.
            stamp.unlink(missing_ok=True)
            if path.is_dir():
                shutil.rmtree(path)
            os.replace(made, path)
        stamp.write_text(wanted)
    return path


def _places(family: Family, name: str) -> tuple[Path, Path]:
    """Where it is kept, and where it is kept what it was made from."""
    folder = cache() / f"{family.name}-{family.version}"
    return folder / name, folder / f".{name}.made-from"


def _is_current(path: Path, stamp: Path, wanted: str) -> bool:
    return path.exists() and stamp.exists() and stamp.read_text() == wanted


def _digest(family: Family, how: str) -> str:
    sources = sorted(each for each in family.folder.iterdir() if each.suffix in (".mod", ".sum", ".go"))
    parts = [*(each.read_text() for each in sources), how]
    return hashlib.sha256("\0".join([*parts, platform.machine()]).encode()).hexdigest()


def _build_command(family: Family, name: str) -> list[str]:
    # The package comes last: _compile puts the output before it.
    return ["build", "-mod=readonly", "-trimpath", "-ldflags", family.linker_flags, family.programs[name]]


def _compile(family: Family, name: str, build: list[str], target: Path, say: Callable[[str], None]) -> None:
    _go_command(family, name)  # says what is missing before anything is said to begin
    say(f"building {name} {family.version} from source (the first time takes minutes)")
    started = time.monotonic()
    _go(family, name, [*build[:-1], "-o", str(target), build[-1]])
    say(f"built {name} {family.version} in {time.monotonic() - started:.0f} s")


def _copy(family: Family, kind: Manifests, target: Path, say: Callable[[str], None]) -> None:
    downloaded = _go(family, kind.name, ["mod", "download", "-json", family.source])
    root = Path(json.loads(downloaded)["Dir"])
    found = [path for pattern in kind.patterns for path in sorted(root.glob(pattern))]
    if not found:
        raise CannotBuild(f"{family.name} {family.version} has no {' or '.join(kind.patterns)} in {root}")
    target.mkdir()
    for path in found:
        shutil.copyfile(path, target / path.name)
    say(f"copied {len(found)} {kind.name} of {family.name} {family.version}")


def _go(family: Family, name: str, arguments: list[str]) -> str:
    """What `go` prints in the family's module. Where modules come from is the machine's own setting."""
    try:
        done = subprocess.run(
            [_go_command(family, name), *arguments],
            cwd=family.folder,
            # Static programs, as the pause image needs; and no go.work above that picks other versions.
            env={**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"},
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
        )
    except subprocess.TimeoutExpired:
        reason = f"`go {arguments[0]}` took more than {BUILD_SECONDS:.0f} s"
        raise _cannot_build(family, name, reason) from None
    if done.returncode:
        last = "\n".join((done.stderr or done.stdout).splitlines()[-15:])
        raise _cannot_build(family, name, f"`go {arguments[0]}` in {family.folder} failed:\n{last}")
    return done.stdout


def _go_command(family: Family, name: str) -> str:
    if go := shutil.which("go"):
        return go
    reason = (
        f"the go command is not on PATH. Install Go {_go_version(family)} or newer, "
        "or point RLJOB_CLUSTER_CACHE to a folder that has it."
    )
    raise _cannot_build(family, name, reason)


def _cannot_build(family: Family, name: str, reason: str) -> CannotBuild:
    return CannotBuild(f"{name} {family.version} is not in {cache()} and cannot be built: {reason}")


def _go_version(family: Family) -> str:
    go_mod = (family.folder / "go.mod").read_text()
    return next(line.removeprefix("go ") for line in go_mod.splitlines() if line.startswith("go "))
