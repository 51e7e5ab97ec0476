"""The last release of this project: its definition of RLJobs, its operator, its chart and its runtime.

It is taken out of the repository's history, as it was. Where the history is not there (a clone with
`--depth`, or files alone) nobody can say what the last release did, and that is told. The release is a commit
here; the next one that is given out takes its place.
"""

import os
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMIT = "c246b68abb11ba0f4a80e3dc3ba8e9c87c953947"
VERSION = "0.1.0"
_PACKAGES = ("crds", "client", "operator", "runtime")
_SECONDS = 60


class NoHistory(Exception):
    """The commit is not in this clone; the message says what to do."""


@dataclass(frozen=True)
class Release:
    """A release."""

    folder: Path
    """Where its files are, as in the repository."""

    @property
    def definition(self) -> Path:
        """Its CustomResourceDefinition."""
        return self.folder / "crds" / "rljobs.rljob.dev.yaml"

    @property
    def chart(self) -> Path:
        """Its Helm chart."""
        return self.folder / "helm" / "rljob-operator"

    @property
    def environment(self) -> dict[str, str]:
        """For a process of this Python: the release's packages come before those that are installed."""
        return {"PYTHONPATH": os.pathsep.join(str(self.folder / each) for each in _PACKAGES)}


THIS_RELEASE = Release(ROOT)


def unpack(folder: Path) -> Release:
    """The release's files, put into an empty folder. Raises `NoHistory`."""
    archive = folder / "release.tar"
    command = ["git", "-C", str(ROOT), "archive", f"--output={archive}", COMMIT, *_PACKAGES, "helm"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS)
    except FileNotFoundError:
        raise NoHistory(
            f"release {VERSION} is taken out of the history by git, which is not installed"
        ) from None
    except subprocess.CalledProcessError as error:
        raise NoHistory(
            f"release {VERSION} ({COMMIT[:7]}) is not in this clone, which needs its history (git fetch "
            f"--unshallow): {error.stderr.strip()}"
        ) from None
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    archive.unlink()
    return Release(folder)
