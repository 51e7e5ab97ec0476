"""Files of prompts in a launch: their paths, formats and names."""

import re
from pathlib import PurePosixPath

from rljob_runtime.authoring.verl.given import Given
from rljob_runtime.authoring.verl.values import items


def local_files(given: Given, key: str) -> list[str]:
    """The paths of a key that has one file or a list of them, without those that are none of a file system,
    which are told; empty where it is not known, which is told too."""
    override = given.overrides.get(key)
    files = []
    if override is not None and given.known(key):
        files = [str(item) for item in items(override.value)]
    else:
        # Tells why it is not known, and what would make it known.
        given.text(key)
    return [path for file in files if (path := local_path(given, key, file)) is not None]


def format_of(path: str) -> str:
    """The field that a file of this name belongs in."""
    return "jsonl" if path.lower().endswith((".jsonl", ".json")) else "parquet"


def local_path(given: Given, key: str, path: str) -> str | None:
    """A path as an RLJob has it; None, and told, where it is none of a file system."""
    if "://" in path:
        given.tell(key, f"{path} is no path of a file system: copy it to one")
        return None
    if path.startswith("~"):
        given.tell(key, "~ is not expanded in a manifest: write the folder out")
    return path or None


def named(paths: list[str]) -> list[tuple[str, str]]:
    """Each path with a name of its own: its folder's, where that tells the files apart, and the file's."""
    found: list[tuple[str, str]] = []
    for path in paths:
        file = PurePosixPath(path)
        words = "-".join(part for part in (file.parent.name, file.stem) if part)
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", words)
        name = name if re.match(r"[A-Za-z_]", name) else f"set-{name}"
        name, taken = name[:44].rstrip("-"), {each for each, _ in found}
        found.append((name if name not in taken else f"{name}-{len(found) + 1}", path))
    return found
